"""Any value as JSON can hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from os import PathLike, fspath
from typing import Any, NamedTuple

__all__ = ["json_ready"]


def json_ready(value: Any, *, array_limit: float = 10_000, text_of: Callable[[Any], str] | None = None) -> Any:
    """Return `value` as JSON values: str, numbers, bool, None, lists and mappings.

    Numpy and JAX values become numbers and nested lists, paths and other objects text, models their fields. Numbers
    that JSON has not become null, with the reason beside them in a `nonfinite` mapping of the nearest enclosing
    mapping: `{"loss": nan}` becomes `{"loss": None, "nonfinite": {"loss": "nan"}}`, an entry of a list is `key[index]`.

    Args:
        value: any value.
        array_limit: entries above which an array is given by dtype, shape and SHA-256.
        text_of: how any other object is written; by its qualified name, or else its `repr`, by default.
    """
    return _convert(value, _How(array_limit, text_of or _name))


class _How(NamedTuple):
    array_limit: float
    text_of: Callable[[Any], str]


def _name(value: Any) -> str:
    return str(value.__qualname__) if isinstance(value, type) or hasattr(value, "__qualname__") else repr(value)


def _convert(value: Any, how: _How) -> Any:
    if isinstance(value, Enum):
        return _convert(value.value, how)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _mapping(value, how)
    if isinstance(value, list | tuple):
        return [_convert(v, how) for v in value]
    if isinstance(value, AbstractSet):
        return sorted((_convert(v, how) for v in value), key=repr)
    if isinstance(value, PathLike):
        return _convert(fspath(value), how)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value, how)
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _mapping(dump(), how)
    return how.text_of(value)


def _mapping(tree: Mapping[Any, Any], how: _How) -> dict[str, Any]:
    out: dict[str, Any] = {}
    nonfinite: dict[str, str] = {}
    for key, value in tree.items():
        name = key if type(key) is str else str(_convert(key, how))
        out[name] = _convert(value, how)
        if out[name] is None or isinstance(out[name], list):
            _note_nonfinite(name, value, nonfinite)
    if nonfinite:
        out["nonfinite"] = {**(out.get("nonfinite") or {}), **nonfinite}
    return out


def _note_nonfinite(name: str, value: Any, nonfinite: dict[str, str]) -> None:
    """Note a number that JSON has not, or the entries of a list or an array that are such, as `name[index]`."""
    plain = _tolist(value) if hasattr(value, "dtype") else value
    if isinstance(plain, list | tuple):
        for i, entry in enumerate(plain):
            _note_nonfinite(f"{name}[{i}]", entry, nonfinite)
    elif isinstance(plain, float) and not math.isfinite(plain):
        nonfinite[name] = str(float(plain))


def _array(value: Any, how: _How) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.size > how.array_limit:
        import hashlib

        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": digest}
    return _convert(_tolist(array), how)


def _tolist(value: Any) -> Any:
    import numpy as np

    array = np.asarray(value)
    # The extended types of ml_dtypes call themselves void and list as objects of their own.
    return (array.astype(np.float64) if array.dtype.kind == "V" and array.dtype.fields is None else array).tolist()
