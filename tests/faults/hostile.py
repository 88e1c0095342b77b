"""Hostile documents, made from whole ones: every key missing, of a wrong type, huge, not finite, a path, a link."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["TEXTS", "VALUES", "field_places", "mutations", "places", "schema_fields"]

Place = tuple[str | int, ...]

DEEP: Any = 0
for _ in range(60):
    DEEP = [DEEP]

MISSING = object()
VALUES: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "negative": -1,
    "large": 10**30,
    "larger": 10**307,
    "real": 1.5,
    "largest real": 1.7e308,
    "text": "text",
    "no text": "",
    "upwards": "../../../thesis",
    "absolute": "/etc/passwd",
    "surrogate": "\ud800\udc80",
    "control": "\x1b[2J\r\x00",
    "long": "x" * 70000,
    "list": [],
    "object": {},
    "numbers": [1, 2.5, None],
    "shape": [2**40, 2**40],
    "deep": DEEP,
    "float": {"$float": "nan"},
    "no float": {"$float": ["nan"]},
}
"""What is put in the place of each value."""

TEXTS: dict[str, bytes] = {
    "empty": b"",
    "torn": b'{"format": 1, "runs"',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "infinity": b'{"format": 1, "x": Infinity}',
    "not a number": b'{"format": 1, "x": NaN}',
    "too large": b'{"format": 1, "x": 1e400}',
    "400 digits": b'{"format": 1, "x": ' + b"7" * 400 + b"}",
    "5,000 digits": b'{"format": 1, "x": ' + b"7" * 5000 + b"}",
    "5,000 digits of a format": b'{"format": ' + b"7" * 5000 + b"}",
    "no UTF-8": b'{"format": 1, "x": "\xff\xfe"}',
    "nulls": b"\x00" * 64,
    "null": b"null",
    "list": b"[]",
    "number": b"7",
    "text": b'"manifest"',
    "a format of the future": b'{"format": 99, "framework": {}}',
    "a format that is no number": b'{"format": {}}',
}
"""What is put in the place of a whole file."""


def places(document: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a document; of a list the first two items, of an object that names things itself likewise."""
    if place:
        yield place
    if isinstance(document, dict):
        for key in list(document)[:60]:
            yield from places(document[key], (*place, key))
    elif isinstance(document, list):
        for index in range(min(2, len(document))):
            yield from places(document[index], (*place, index))


def mutations(document: Any, at: Sequence[Place]) -> Iterator[tuple[Place, str, Any]]:
    """Copies of a document with each value of `VALUES` at each of these places."""
    for place in at:
        for name, value in VALUES.items():
            made = copy.deepcopy(document)
            parent = made
            for key in place[:-1]:
                parent = parent[key]
            if value is MISSING:
                del parent[place[-1]]
            else:
                parent[place[-1]] = value
            yield place, name, made


def schema_fields(schema: dict[str, Any]) -> set[str]:
    """The names of all fields that a JSON schema knows, at any depth."""
    names = set(schema.get("properties", {}))
    for part in (*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()):
        names |= schema_fields(part)
    return names


def field_places(places_tried: Sequence[Place]) -> set[str]:
    """The names among places."""
    return {key for place in places_tried for key in place if isinstance(key, str)}


def sealed(document: dict[str, Any], seal: Callable[[str], bytes], blank: str) -> bytes:
    """The text of a document with a digest that fits it, as somebody who knows nitro would write it."""
    return seal(json.dumps({**document, "sha256": blank}))
