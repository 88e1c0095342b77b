"""One text for one value, whatever wrote it, and the digest of that text."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

__all__ = ["canonical", "canonical_digest"]


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value: UTF-8, keys sorted, no blanks, nothing escaped that need not be.

    `1` and `1.0` stay apart. A real number is written with the fewest digits that read back as it.

    Raises:
        ValueError: something in it is no JSON, or not finite; its path is named.
    """
    _check(value, "")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def canonical_digest(value: Any) -> str:
    """`sha256:<hex>` of the canonical JSON of a value."""
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"


def _check(value: Any, path: str) -> None:
    place = path or "the value"
    if value is None or type(value) in (bool, int):
        return
    if type(value) is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{place} is text that UTF-8 cannot hold") from None
    elif type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which is no JSON number")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"{place} has the key {key!r}, which is no text")
            _check(key, f"a key of {place}")
            _check(item, f"{path}.{key}".removeprefix("."))
    else:
        raise ValueError(f"{place} is of type {type(value).__name__}, which is no JSON")
