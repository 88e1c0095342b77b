"""Comparing and naming values by their content."""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from .sentinel import StrippedHost

__all__ = ["NoContentError", "content_digest", "same_content"]


class NoContentError(Exception):
    """A value, or a part of one, does not compare and hash by content.

    Args:
        path: where the part is inside the value, such as `[2].rate`; empty for the value itself.
        part: the offending part.
    """

    def __init__(self, path: str, part: Any) -> None:
        super().__init__(path, part)
        self.path = path
        self.part = part


def content_digest(value: Any) -> str:
    """The SHA-256 of a value's content: equal in another process, for equal content only.

    Scalars, strings, bytes, enums, paths, dates, tuples, lists, mappings (in any order), sets, frozen dataclasses,
    frozen pydantic models, dtypes, and arrays by dtype, shape and bytes.

    Raises:
        NoContentError: some part is none of these.
    """
    digest = hashlib.sha256()
    for chunk in _encode(value, ""):
        digest.update(struct.pack("<Q", len(chunk)))
        digest.update(chunk)
    return digest.hexdigest()


def _encode(value: Any, path: str) -> Iterator[bytes]:
    if isinstance(value, Enum):
        yield from (b"enum", _name(type(value)), value.name.encode())
    elif value is None or isinstance(value, bool | int | complex | str | Decimal | UUID):
        yield from (_tag(value), str(value).encode(errors="surrogatepass"))
    elif isinstance(value, float) and not hasattr(value, "dtype"):
        yield from (b"float", b"nan" if math.isnan(value) else value.hex().encode())
    elif isinstance(value, bytes | bytearray):
        yield from (b"bytes", bytes(value))
    elif isinstance(value, PurePath | date | datetime | time | timedelta | range):
        yield from (_tag(value), str(value).encode())
    elif is_dtype(value):
        import numpy as np

        yield from (b"dtype", np.dtype(value).name.encode())
    elif isinstance(value, tuple | list):
        yield from (b"tuple" if isinstance(value, tuple) else b"list", str(len(value)).encode())
        for index, item in enumerate(value):
            yield from _encode(item, f"{path}[{index}]")
    else:
        yield from _encode_structure(value, path)


def _encode_structure(value: Any, path: str) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        keys = sorted(((_digest_at(key, path), key) for key in value), key=lambda item: item[0])
        yield from (b"mapping", str(len(keys)).encode())
        for digest, key in keys:
            yield digest.encode()
            yield from _encode(value[key], f"{path}[{key!r}]")
    elif isinstance(value, frozenset | set):
        yield from (b"set", str(len(value)).encode())
        yield from sorted(_digest_at(item, path).encode() for item in value)
    elif is_array(value):
        yield from _encode_array(value, path)
    elif is_dataclass(value) and not isinstance(value, type) and type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        yield from (b"dataclass", _name(type(value)))
        for field in fields(value):
            yield field.name.encode()
            yield from _encode(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, BaseModel) and value.model_config.get("frozen"):
        yield from (b"model", _name(type(value)))
        for name in type(value).model_fields:
            yield name.encode()
            yield from _encode(getattr(value, name), f"{path}.{name}")
    else:
        raise NoContentError(path, value)


def _encode_array(value: Any, path: str) -> Iterator[bytes]:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.hasobject:
        raise NoContentError(path, value)
    yield from (b"array", array.dtype.str.encode(), array.dtype.name.encode(), str(array.shape).encode())
    yield np.ascontiguousarray(array).tobytes()


def _digest_at(value: Any, path: str) -> str:
    """`content_digest` of a part that lies at `path`."""
    try:
        return content_digest(value)
    except NoContentError as error:
        raise NoContentError(path + error.path, error.part) from None


def is_array(value: Any) -> bool:
    """Whether a value is an array or array scalar of numpy or JAX."""
    if isinstance(value, StrippedHost):
        return False
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type)


def is_dtype(value: Any) -> bool:
    """Whether a value names an array element type: a numpy dtype, `np.float32`, `jnp.bfloat16`."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if type(value).__name__ == "_ScalarMeta":
        return isinstance(getattr(value, "dtype", None), numpy.dtype)
    return issubclass(value, numpy.generic) if isinstance(value, type) else isinstance(value, numpy.dtype)


def _tag(value: Any) -> bytes:
    kind = type(value)
    # A str subclass with the same text is the same content.
    for plain in (bool, int, complex, str):
        if isinstance(value, plain):
            return plain.__name__.encode()
    return kind.__name__.encode()


def _name(cls: type) -> bytes:
    return f"{cls.__module__}:{cls.__qualname__}".encode()


def same_content(a: Any, b: Any) -> bool:
    """Whether two values hold the same: arrays by dtype, shape and elements, NaN equal to NaN. Never raises."""
    if a is b:
        return True
    if is_array(a) or is_array(b):
        return is_array(a) and is_array(b) and _same_array(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same_content(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same_content(x, y) for x, y in zip(a, b, strict=True))
    if is_dataclass(a) and not isinstance(a, type):
        return all(same_content(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.compare)
    if isinstance(a, BaseModel) and type(a).__eq__ is BaseModel.__eq__:
        return all(same_content(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
    try:
        return bool(a == b)
    except Exception:  # a foreign type whose comparison fails is not known to be equal
        return False


def _same_array(a: Any, b: Any) -> bool:
    import numpy as np

    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
