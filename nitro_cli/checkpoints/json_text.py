"""JSON without loss: floats that are not finite survive, and a document can carry its own digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.text import parse_json
from nitro_cli.text.json_values import LARGEST_INTEGER

__all__ = ["BLANK_DIGEST", "decode_value", "dump_sealed", "encode_value", "is_sealed", "load_sealed", "seal"]

DEEPEST_JSON = 48
"""Levels of lists and mappings in a value; a document that holds it has a few more."""

_FLOAT = "$float"
_SEAL = '"sha256": "'
BLANK_DIGEST = "0" * 64
_NAMES = ("nan", "inf", "-inf")


def encode_value(value: Any, where: str, *, levels: int = DEEPEST_JSON) -> Any:
    """Turn a value into plain JSON: tuples to lists, numpy scalars to numbers, NaN to `{"$float": "nan"}`.

    Raises:
        ConfigError: the value, or a part of it, has no JSON form; the message names its key path.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if levels < 0:
        raise _no_json(where[:200], f"it is nested deeper than {DEEPEST_JSON} levels")
    if isinstance(value, int):
        if abs(value) >= LARGEST_INTEGER:
            raise _no_json(where, "the number is larger than every float")
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        if _FLOAT in value:
            raise _no_json(where, f"the key {_FLOAT!r} is reserved")
        encoded = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _no_json(where, f"the key {key!r} is not a string")
            encoded[str(key)] = encode_value(item, f"{where}.{key}", levels=levels - 1)
        return encoded
    if isinstance(value, (list, tuple)):
        return [encode_value(item, f"{where}[{i}]", levels=levels - 1) for i, item in enumerate(value)]
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return encode_value(value.item(), where, levels=levels)
    raise _no_json(where, f"{type(value).__name__} has no JSON form")


def _no_json(where: str, why: str) -> ConfigError:
    return ConfigError(
        "a checkpoint's metadata cannot be written",
        where=where,
        why=why,
        fix="use dicts with string keys, lists, strings, numbers, booleans and None; put arrays in the arrays",
    )


def decode_value(value: Any) -> Any:
    """Undo `encode_value`, up to tuples, which come back as lists.

    Raises:
        ValueError: what stands for a float that is not finite is none.
    """
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            name = value[_FLOAT]
            if not isinstance(name, str) or name not in _NAMES:
                raise ValueError(f"{_FLOAT} is none of {', '.join(_NAMES)}")
            return float(name)
        return {key: decode_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    return value


def dump_sealed(document: Mapping[str, Any]) -> bytes:
    """Write a JSON object whose first member, `sha256`, is the digest of the text with that digest blanked."""
    return seal(json.dumps({"sha256": BLANK_DIGEST, **document}, indent=1, ensure_ascii=True, allow_nan=False))


def seal(text: str) -> bytes:
    """Put the digest of a text in the place of the first `BLANK_DIGEST` in it, the value of its member `sha256`."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(BLANK_DIGEST, digest, 1).encode()


def is_sealed(content: bytes) -> bool:
    """Whether the text is exactly what `dump_sealed` wrote."""
    start = content.find(_SEAL.encode())
    if start < 0:
        return False
    start += len(_SEAL)
    found = content[start : start + 64]
    blanked = content[:start] + BLANK_DIGEST.encode() + content[start + 64 :]
    return hashlib.sha256(blanked).hexdigest().encode() == found


def load_sealed(content: bytes) -> dict[str, Any]:
    """Read what `dump_sealed` wrote.

    Raises:
        ValueError: the text is damaged, or not such a document.
    """
    if not is_sealed(content):
        raise ValueError("its text does not match the digest it carries")
    document = parse_json(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document
