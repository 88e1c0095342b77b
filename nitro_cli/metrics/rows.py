"""A history row as one JSON object, and back, without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import IntegrityError
from nitro_cli.metrics.reported import flatten_scalars

__all__ = ["decode_row", "encode_row"]

# Kinds of array that JSON lists give, for each kind they may stand for; "O" where some entries are not finite.
_TAKES = {"b": "b", "i": "i", "u": "iu", "f": "fiuO"}


def encode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a history row as JSON-ready values.

    A non-finite number becomes null, with what it was in `nonfinite` beside it (`{"loss": "nan"}`,
    `{"recall[3]": "inf"}` for an entry of an array). An array becomes nested lists, with its dtype in `arrays`.
    """
    judged = row.get("monitor")
    if isinstance(judged, Mapping):
        return encode_row({name: value for name, value in row.items() if name != "monitor"}) | {"monitor": dict(judged)}
    scalars, others = flatten_scalars(row)
    out: dict[str, Any] = {}
    nonfinite: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for name in _flat_order(row, scalars, others):
        if name in scalars:
            value = scalars[name]
            if isinstance(value, float) and not math.isfinite(value):
                nonfinite[name] = str(float(value))
                out[name] = None
            else:
                out[name] = value
        else:
            out[name] = _encode_array(name, others[name], arrays, nonfinite)
    if arrays:
        out["arrays"] = arrays
    if nonfinite:
        out["nonfinite"] = nonfinite
    return out


def decode_row(obj: Mapping[str, Any], place: str = "a row") -> dict[str, Any]:
    """Return the row that `encode_row` made `obj` from.

    Args:
        obj: the JSON object.
        place: where it lies, for the error.

    Raises:
        IntegrityError: `obj` is no such row.
    """
    from nitro_cli.metrics.row_document import check_row

    check_row(obj, place)
    row = dict(obj)
    reasons, arrays = row.pop("nonfinite", None), row.pop("arrays", None)
    try:
        _restore(row, reasons or {}, arrays or {})
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise IntegrityError(f"{place}, is not a history row", where=place, why=f"{error}") from error
    # A null without a reason says that the epoch had no such metric.
    return {k: v for k, v in row.items() if v is not None} if any(v is None for v in row.values()) else row


def _restore(row: dict[str, Any], reasons: Mapping[str, str], arrays: Mapping[str, str]) -> None:
    for name, value in row.items():
        if isinstance(value, list) and name not in arrays:
            raise ValueError(f"{name} is a list, and `arrays` does not say of what")
    entries: list[tuple[str, tuple[int, ...], float]] = []
    for key, reason in reasons.items():
        value = float(reason)
        if key in row:
            row[key] = value
        else:
            name, _, index = key[:-1].rpartition("[")
            entries.append((name, tuple(int(i) for i in index.split(",")), value))
    if arrays:
        import numpy as np

        replaced = {name for name, _, _ in entries}
        for name, dtype in arrays.items():
            plain = np.asarray(row[name], dtype=object) if name in replaced else np.asarray(row[name])
            for _, at, entry in (e for e in entries if e[0] == name):
                plain[at] = entry
            if plain.size and plain.dtype.kind not in _TAKES[np.dtype(dtype).kind]:
                raise ValueError(f"{name} holds {plain.dtype.name}, and `arrays` says {dtype}")
            row[name] = np.asarray(plain, dtype=dtype)


def _flat_order(row: Mapping[str, Any], scalars: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    if len(row) == len(scalars) + len(others):
        return list(row)
    return [*scalars, *others]


def _encode_array(name: str, value: Any, arrays: dict[str, str], nonfinite: dict[str, str]) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float64)
    arrays[name] = array.dtype.name
    listed = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        plain = array.astype(object)
        for index in map(tuple, np.argwhere(~np.isfinite(array)).tolist()):
            nonfinite[f"{name}[{','.join(map(str, index))}]"] = str(float(array[index]))
            plain[index] = None
        listed = plain.tolist()
    return listed
