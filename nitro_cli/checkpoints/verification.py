"""Checking every checkpoint of a run or a directory against its digests; neither JAX nor orbax is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import CheckpointNotFoundError, IntegrityError, NitroError
from nitro_cli.text import user_path

from .manifest import MANIFEST_FILE
from .names import CHECKPOINTS, QUARANTINED, RUN_ID, is_checkpoint_name, quarantined_records
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
        One outcome per checkpoint, whole ones included, by run and name. Of a run that has none but those set aside as
        damaged, these.

    Raises:
        CheckpointNotFoundError: `path` is none of the three, or holds no checkpoint.
    """
    place = user_path(path)
    if place.name in (RECORD_FILE, MANIFEST_FILE) and place.is_file():
        place = place.parent
    found = _records(place)
    if not found:
        raise CheckpointNotFoundError(
            "there is no checkpoint to verify",
            where=str(place),
            why=_why_none(place),
        )
    return [_outcome(record) for record in found]


def _why_none(place: Path) -> str:
    if not place.is_dir():
        return "it does not exist"
    if (place / CHECKPOINTS).is_dir():
        return "the run has none"
    if (place / MANIFEST_FILE).is_file():
        return "none of its runs has one"
    return "it is not a checkpoint, a run or a directory of runs"


def _records(place: Path) -> list[Path]:
    if (place / RECORD_FILE).exists() or (place.parent.name == CHECKPOINTS and place.is_dir()):
        return [place]
    if (place / CHECKPOINTS).is_dir():
        found = sorted(p for p in (place / CHECKPOINTS).iterdir() if p.is_dir() and is_checkpoint_name(p.name))
        return found or quarantined_records(place)
    if place.is_dir():
        runs = sorted(p for p in place.iterdir() if RUN_ID.fullmatch(p.name) and (p / CHECKPOINTS).is_dir())
        return [record for run in runs for record in _records(run)]
    return []


def _outcome(path: Path) -> Verification:
    try:
        size = verify_record(path).size
        if path.parent.name == CHECKPOINTS and QUARANTINED.search(path.name):
            why = "it was set aside as damaged, and is whole now"
            fix = "give it its name without `.corrupt-<n>` again, then `nitro runs DIR --rescan`"
            raise IntegrityError(f"the checkpoint {path.name} is set aside", where=str(path), why=why, fix=fix)
        return Verification(path, size, None)
    except NitroError as error:
        return Verification(path, 0, error)
