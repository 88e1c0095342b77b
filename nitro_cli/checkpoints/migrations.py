"""Formats of record.json and manifest.json: the current ones, and the way from each older one to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nitro_cli.errors import IncompatibleError, IntegrityError

__all__ = [
    "MANIFEST_FORMAT",
    "MANIFEST_MIGRATIONS",
    "RECORD_FORMAT",
    "RECORD_MIGRATIONS",
    "migrated",
]

Migration = Callable[[dict[str, Any]], dict[str, Any]]

RECORD_FORMAT = 3
MANIFEST_FORMAT = 2


def _with_all_that_is_meant(document: dict[str, Any]) -> dict[str, Any]:
    """What versions before said by silence: one step per dispatch, no reduction of a plateau; and by null."""
    meta = document.get("meta")
    if not isinstance(meta, dict):
        return document  # its schema refuses it
    meta = {"steps_per_dispatch": 1, **{name: value for name, value in meta.items() if value is not None}}
    plateaus: Any = meta
    for key in ("rules", "schedules", "plateaus"):
        plateaus = plateaus.get(key) if isinstance(plateaus, dict) else None
    for plateau in plateaus.values() if isinstance(plateaus, dict) else ():
        if isinstance(plateau, dict):
            plateau.setdefault("reductions", 0)
    return {**document, "meta": meta}


# The function at n turns a document of format n into one of format n + 1.
RECORD_MIGRATIONS: dict[int, Migration] = {
    1: lambda document: document,  # 2 adds leaves in pieces
    2: _with_all_that_is_meant,
}
MANIFEST_MIGRATIONS: dict[int, Migration] = {
    1: lambda document: document,  # 2 adds a digest and the sequence, which is 0 for all that is there
}


def migrated(document: dict[str, Any], current: int, migrations: Mapping[int, Migration], path: Path) -> dict[str, Any]:
    """Bring a document to the current format.

    Args:
        document: has `format`, a number, and `framework`, the version of nitro that wrote it.
        current: the format that this version reads.
        migrations: the way from each older format to the next.
        path: the file, for errors.

    Raises:
        IncompatibleError: a newer nitro wrote it.
        IntegrityError: the format is not a known number.
    """
    found = document.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise IntegrityError(f"{path.name} has no format number", where=str(path), why=f"`format` is {found!r}")
    if found > current:
        raise IncompatibleError(
            f"{path.name} has format {found}, newer than this nitro reads",
            where=str(path),
            why=f"nitro {document.get('framework', 'of an unknown version')} wrote it; this version reads up to "
            f"format {current}",
            fix="upgrade with `pip install -U jax-nitro`",
        )
    while found < current:
        document = {**migrations[found](document), "format": found + 1}
        found += 1
    return document
