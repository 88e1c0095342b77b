"""JSON documents: a schema number, plain values, and no number that JSON cannot hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

__all__ = ["SCHEMA", "document", "dumps", "plain"]

SCHEMA = 1
"""Version of the documents; keys are only ever added."""


def plain(value: Any) -> Any:
    """`value` as JSON types; inside a mapping a number that is not finite becomes null, named under `nonfinite`.

    `{"loss": nan}` becomes `{"loss": None, "nonfinite": {"loss": "nan"}}`, an element of a list is named
    `key[index]`.
    """
    return _plain(value, "", {})


def document(**keys: Any) -> dict[str, Any]:
    """One document with its schema number first."""
    return {"schema": SCHEMA, **plain(keys)}


def dumps(value: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """The text of a document made by `document`: ASCII, so that every stream takes it and it moves no cursor."""
    # JSON's own escapes leave out one control character.
    return json.dumps(value, indent=indent, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def _plain(value: Any, key: str, reasons: dict[str, str]) -> Any:
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return _plain(value.value, key, reasons)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        reasons[key] = "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        return None
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, f"{key}[{i}]", reasons) for i, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and jax, without importing either
        return _plain(value.tolist(), key, reasons)
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(), key, reasons)
    return str(value)


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    own: dict[str, str] = {}
    made = {str(key): _plain(item, str(key), own) for key, item in value.items()}
    if own:
        made["nonfinite"] = {**(made.get("nonfinite") or {}), **own}
    return made
