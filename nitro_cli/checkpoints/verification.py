"""Checking every checkpoint of a run or a directory against its digests; neither JAX nor orbax is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import CheckpointNotFoundError, NitroError

from .manifest import MANIFEST_FILE
from .names import CHECKPOINTS, RUN_ID, is_checkpoint_name
from .record import RECORD_FILE, verify_record

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one checkpoint.

    Attributes:
        path: its directory.
        size: bytes of its arrays; 0 when its record.json cannot be read.
        error: what is wrong with it; None when it is whole.
    """

    path: Path
    size: int
    error: NitroError | None

    @property
    def ok(self) -> bool:
        """Whether it is whole."""
        return self.error is None

    def as_json(self) -> dict[str, Any]:
        """The form in `nitro checkpoint verify --json`."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "size": self.size,
            "error": None if self.error is None else self.error.as_json(),
        }


def verify(path: Path | str) -> list[Verification]:
    """Verify a checkpoint, all checkpoints of a run, or all of a directory of runs.

    Args:
        path: any of the three.

    Returns:
        One outcome per checkpoint, whole ones included, by run and name.

    Raises:
        CheckpointNotFoundError: `path` is none of the three, or holds no checkpoint.
    """
    place = Path(path)
    if place.name in (RECORD_FILE, MANIFEST_FILE) and place.is_file():
        place = place.parent
    found = _records(place)
    if not found:
        raise CheckpointNotFoundError(
            "there is no checkpoint to verify",
            where=str(place),
            why="it is not a checkpoint, a run or a directory of runs" if place.is_dir() else "it does not exist",
        )
    return [_outcome(record) for record in found]


def _records(place: Path) -> list[Path]:
    if (place / RECORD_FILE).exists() or (place.parent.name == CHECKPOINTS and place.is_dir()):
        return [place]
    if (place / CHECKPOINTS).is_dir():
        return sorted(p for p in (place / CHECKPOINTS).iterdir() if p.is_dir() and is_checkpoint_name(p.name))
    if place.is_dir():
        runs = sorted(p for p in place.iterdir() if RUN_ID.fullmatch(p.name) and (p / CHECKPOINTS).is_dir())
        return [record for run in runs for record in _records(run)]
    return []


def _outcome(path: Path) -> Verification:
    try:
        return Verification(path, verify_record(path).size, None)
    except NitroError as error:
        return Verification(path, 0, error)
