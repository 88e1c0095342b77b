"""Values as TOML writes them, and digests of what it cannot write."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import inspect
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from nitro_cli.experiment import Part, Selector

__all__ = [
    "NotWritable",
    "is_numpy_like",
    "list_as",
    "natural_form",
    "type_of_list",
    "unwritten_digest",
    "value_type",
    "without_none",
]

_ARRAY_LIMIT = 4096
_ARRAY_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")
_BLOCK_BYTES = 2**24
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class NotWritable(Exception):
    """TOML has no form for a value."""


def natural_form(value: Any) -> Any:
    """The form TOML would write a value in; None stays None, inside tables too.

    Models and dataclasses become tables, a part's with the key that names it, tuples and sets lists, enums their value,
    paths, selectors and objects with a text form strings, small arrays nested lists.

    Raises:
        NotWritable: there is no such form.
    """
    if isinstance(value, enum.Enum):
        return natural_form(value.value)
    if value is None or isinstance(value, (bool, int, float)):
        return value if type(value) in (type(None), bool, int, float) else _of_number_subclass(value)
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value
    if isinstance(value, (PurePath, Selector)):
        return _text(str(value))
    if isinstance(value, BaseModel):
        return _of_model(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _of_dataclass(value)
    if isinstance(value, Mapping):
        return {_key(key): natural_form(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [natural_form(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((natural_form(item) for item in value), key=lambda item: (type(item).__name__, repr(item)))
    return _of_other(value)


def _of_number_subclass(value: Any) -> Any:
    return int(value) if isinstance(value, int) else float(value)


def _text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise NotWritable("text with a lone surrogate") from problem
    return value


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return _text(str(key))
    raise NotWritable(f"a key of type {type(key).__name__}")


def _of_model(value: BaseModel) -> Any:
    found = value.identity() if isinstance(value, Part) else {}
    for name, info in type(value).model_fields.items():
        inner = getattr(value, name)
        if inner is not None or info.default is not None:  # none is said by leaving out where it is the default
            found[info.alias or name] = natural_form(inner)
    return found


def _of_dataclass(value: Any) -> Any:
    found = {}
    for info in dataclasses.fields(value):
        inner = getattr(value, info.name)
        if info.init and (inner is not None or info.default is not None):
            found[info.name] = natural_form(inner)
    return found


def _of_other(value: Any) -> Any:
    if is_numpy_like(value):
        if value.size > _ARRAY_LIMIT:
            raise NotWritable("a large array")
        return natural_form(value.tolist())
    if callable(value) or type(value).__str__ is object.__str__:
        raise NotWritable(f"an object of type {type(value).__name__}")
    return _text(str(value))


def is_numpy_like(value: Any) -> bool:
    """Whether a value is an array of numpy or JAX, told without importing either."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "tobytes")


def without_none(form: Any) -> tuple[Any, list[tuple[str, ...]]]:
    """Take the None values out of a natural form's tables.

    Returns:
        The form that TOML can write, and the key paths that were None (the empty path for the form itself).

    Raises:
        NotWritable: a None stands in a list, where no key path reaches it.
    """
    if form is None:
        return None, [()]
    if isinstance(form, list):
        items = [without_none(item) for item in form]
        if any(paths for _, paths in items):
            raise NotWritable("None in a list")
        return [item for item, _ in items], []
    if not isinstance(form, dict):
        return form, []
    table: dict[str, Any] = {}
    removed: list[tuple[str, ...]] = []
    for key, item in form.items():
        kept, paths = without_none(item)
        removed += [(key, *path) for path in paths]
        if () not in paths:
            table[key] = kept
    return table, removed


def type_of_list(value: Any) -> str | None:
    """What a value that TOML writes as a list is: `tuple`, `set`, `frozenset`, or an array's `float32[10]`."""
    if is_numpy_like(value):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__ if type(value) in (tuple, set, frozenset) else None


def list_as(items: Any, text: str) -> Any:
    """Make of a list what `type_of_list` told; None when that cannot be."""
    kinds: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
    found = _ARRAY_TYPE.fullmatch(text)
    try:
        if text in kinds:
            return kinds[text](items)
        if found is None:
            return None
        import numpy as np

        shape = [int(size) for size in found["shape"].split(",") if size.strip()]
        return np.asarray(items, dtype=found["dtype"]).reshape(shape)
    except (TypeError, ValueError, OverflowError):
        return None


def value_type(value: Any) -> str:
    """A value's type for people: `numpy.ndarray float32[3, 4]`, `my.module.Class`."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if is_numpy_like(value):
        return f"{name} {value.dtype}{list(value.shape)}"
    return name


def unwritten_digest(value: Any) -> str:
    """SHA-256 of a value's content: an array's dtype, shape and bytes, a function's source, else its pickled form."""
    digest = hashlib.sha256(value_type(value).encode())
    if is_numpy_like(value) and value.dtype.kind != "O":
        for block in _blocks(value):
            digest.update(block)
    elif inspect.isroutine(value) or isinstance(value, type):
        try:
            digest.update(inspect.getsource(value).encode())
        except (OSError, TypeError):
            digest.update(f"{value.__module__}:{value.__qualname__}".encode())
    else:
        try:
            digest.update(pickle.dumps(value, protocol=5))
        except Exception:  # any object may refuse, with any exception
            digest.update(_ADDRESS.sub("", repr(value)).encode())
    return digest.hexdigest()


def _blocks(value: Any) -> Iterator[bytes]:
    """The bytes of an array in C order, a few rows at a time: a field may hold a table of many gigabytes."""
    import numpy as np

    array = np.asanyarray(value)
    if array.nbytes <= _BLOCK_BYTES or array.ndim == 0:
        yield array.tobytes()
        return
    rows = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        yield array[first : first + rows].tobytes()
