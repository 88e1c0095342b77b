"""JSON documents: a schema number, plain values, and no number that JSON cannot hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nitro_cli.text import json_ready

__all__ = ["SCHEMA", "document", "dumps"]

SCHEMA = 1
"""Version of the documents; keys are only ever added."""


def document(**keys: Any) -> dict[str, Any]:
    """One document with its schema number first; arrays are given whole."""
    return {"schema": SCHEMA, **json_ready(keys, array_limit=math.inf, text_of=str)}


def dumps(value: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """The text of a document made by `document`: ASCII, so that every stream takes it and it moves no cursor."""
    # JSON's own escapes leave out one control character.
    return json.dumps(value, indent=indent, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")
