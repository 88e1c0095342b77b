"""JSON from a file that somebody else may have made: every number is one that can be used, nesting has an end."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

__all__ = ["LARGEST_INTEGER", "parse_json"]

LARGEST_INTEGER = 10**308
"""Whole numbers of this size and above are not read, and so not written: no float is as large."""

_DIGITS = 309
_DEEPEST = 64


def parse_json(content: bytes | str) -> Any:
    """Read a JSON document.

    Lone surrogates, which stand for bytes of a name that are no UTF-8, are taken as nitro writes them.

    Raises:
        ValueError: it is no JSON, is no UTF-8, is nested too deep, or holds a number beyond every float.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8", "surrogatepass")
        value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from None
    if text.count("[") + text.count("{") > _DEEPEST and _deeper(value, _DEEPEST):
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    return value


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    value = int(text)
    if abs(value) >= LARGEST_INTEGER:
        raise ValueError(f"a number has {len(text)} digits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is larger than every float")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested in more than so many levels; walks level by level, so needs no stack."""
    layer = [value]
    while layer:
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner.extend(part for part in item.values() if isinstance(part, (dict, list)))
            elif isinstance(item, list):
                inner.extend(part for part in item if isinstance(part, (dict, list)))
        if inner and levels == 0:
            return True
        layer, levels = inner, levels - 1
    return False
