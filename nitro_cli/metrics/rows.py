"""A history row as one JSON object, and back, without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import IntegrityError
from nitro_cli.metrics.reported import flatten_scalars

__all__ = ["decode_row", "encode_row"]

_VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a history row as JSON-ready values.

    A non-finite number becomes null, with what it was in `nonfinite` beside it (`{"loss": "nan"}`,
    `{"recall[3]": "inf"}` for an entry of an array). An array becomes nested lists, with its dtype in `arrays`.
    """
    scalars, others = flatten_scalars(row)
    out: dict[str, Any] = {}
    nonfinite: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for name in _flat_order(row, scalars, others):
        if name in scalars:
            value = scalars[name]
            if isinstance(value, float) and not math.isfinite(value):
                nonfinite[name] = _reason(value)
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


def decode_row(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row that `encode_row` made `obj` from.

    Raises:
        IntegrityError: `obj` has no whole-number epoch and step.
    """
    row = dict(obj)
    reasons, arrays = row.pop("nonfinite", None), row.pop("arrays", None)
    epoch, step = row.get("epoch"), row.get("step")
    if type(epoch) is not int or type(step) is not int:
        raise IntegrityError(
            f"A history row has epoch {epoch!r} and step {step!r}.", why="both must be whole numbers in every row"
        )
    if reasons or arrays:
        _restore(row, reasons or {}, arrays or {})
    # A null without a reason says that the epoch had no such metric.
    return {k: v for k, v in row.items() if v is not None} if any(v is None for v in row.values()) else row


def _restore(row: dict[str, Any], reasons: Mapping[str, str], arrays: Mapping[str, str]) -> None:
    entries: list[tuple[str, tuple[int, ...], float]] = []
    for key, reason in reasons.items():
        value = _VALUES.get(reason, math.nan)
        if key in row:
            row[key] = value
        else:
            name, _, index = key[:-1].rpartition("[")
            entries.append((name, tuple(int(i) for i in index.split(",")), value))
    if arrays:
        import numpy as np

        replaced = {name for name, _, _ in entries}
        for name, dtype in arrays.items():
            plain = np.asarray(row[name], dtype=object) if name in replaced else row[name]
            for _, at, entry in (e for e in entries if e[0] == name):
                plain[at] = entry
            row[name] = np.asarray(plain, dtype=dtype)


def _flat_order(row: Mapping[str, Any], scalars: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    if len(row) == len(scalars) + len(others):
        return list(row)
    return [*scalars, *others]


def _reason(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


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
            nonfinite[f"{name}[{','.join(map(str, index))}]"] = _reason(float(array[index]))
            plain[index] = None
        listed = plain.tolist()
    return listed
