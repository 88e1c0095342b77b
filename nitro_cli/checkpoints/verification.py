"""Checking every checkpoint of a run or a directory against its digests; neither JAX nor orbax is needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import CheckpointNotFoundError, IntegrityError, NitroError
from nitro_cli.text import user_path

from .entries import Manifest
from .manifest import MANIFEST_FILE, load_manifest, present_names
from .names import AVERAGES_DIR, CHECKPOINTS, QUARANTINED, RUN_ID, is_checkpoint_name, quarantined_records
from .reconcile import with_records
from .record import verify_record
from .record_metadata import RECORD_FILE
from .recorded_history import HISTORY_FILE, history_problem

__all__ = ["Verification", "verify"]

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one checkpoint, or what is wrong with another file of a run.

    Attributes:
        path: the checkpoint's directory; or that of a run that is gone, or a file.
        size: bytes of its arrays; 0 when its record.json cannot be read.
        error: what is wrong with it; None when it is whole.
        gone: whether it is not there, and only the manifest lists it.
    """

    path: Path
    size: int
    error: NitroError | None
    gone: bool = False

    @property
    def ok(self) -> bool:
        """Whether it is whole."""
        return self.error is None

    def as_json(self) -> dict[str, Any]:
        """The form in `nitro checkpoint verify --json`."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "gone": self.gone,
            "size": self.size,
            "error": None if self.error is None else self.error.as_json(),
        }


def verify(path: Path | str) -> list[Verification]:
    """Verify a checkpoint, all checkpoints and averages of a run, or all of a directory of runs.

    Of a run or a directory also what its manifest lists and the disk does not hold, and where the manifest or a run's
    history says otherwise than the records.

    Args:
        path: any of the three.

    Returns:
        One outcome per checkpoint, whole ones included, by run and name, and one for each file that is wrong and each
        run or checkpoint that is gone. Of a run that has none but those set aside as damaged, these.

    Raises:
        CheckpointNotFoundError: `path` is none of the three, or holds no checkpoint and misses none.
    """
    place = user_path(path)
    if place.name in (RECORD_FILE, MANIFEST_FILE) and place.is_file():
        place = place.parent
    found = [_outcome(record) for record in _records(place)]
    if not _is_record(place):
        found += _against_manifest(place, {outcome.path for outcome in found})
    if not found:
        raise CheckpointNotFoundError("there is no checkpoint to verify", where=str(place), why=_why_none(place))
    return found


def _why_none(place: Path) -> str:
    if not place.is_dir():
        return "it does not exist"
    if (place / CHECKPOINTS).is_dir():
        return "the run has none"
    if (place / MANIFEST_FILE).is_file():
        return "none of its runs has one"
    return "it is not a checkpoint, a run or a directory of runs"


def _is_record(place: Path) -> bool:
    return os.path.lexists(place / RECORD_FILE) or (place.parent.name == CHECKPOINTS and place.is_dir())


def _records(place: Path) -> list[Path]:
    if _is_record(place):
        return [place]
    if (place / CHECKPOINTS).is_dir():
        return (_inside(place / CHECKPOINTS) or quarantined_records(place)) + _inside(place / AVERAGES_DIR)
    if place.is_dir():
        runs = sorted(p for p in place.iterdir() if RUN_ID.fullmatch(p.name) and (p / CHECKPOINTS).is_dir())
        return [record for run in runs for record in _records(run)]
    return []


def _inside(folder: Path) -> list[Path]:
    items = folder.iterdir() if folder.is_dir() else ()
    return sorted(item for item in items if item.is_dir() and is_checkpoint_name(item.name))


def _against_manifest(place: Path, told: set[Path]) -> list[Verification]:
    """What a run or a directory of runs lacks that its manifest lists, and what says otherwise than the records.

    Args:
        place: the run or the directory.
        told: checkpoints that there are outcomes of; one that is set aside is not gone as well.
    """
    one = place.name if RUN_ID.fullmatch(place.name) and not os.path.lexists(place / MANIFEST_FILE) else None
    root = place.parent if one is not None else place
    try:
        manifest, gone = _listed_and_gone(root, one)
    except NitroError as error:
        return [Verification(root / MANIFEST_FILE, 0, error)]
    whole_names = {path.with_name(QUARANTINED.sub("", path.name)) for path in told}
    missing = [root / path for path in gone if root / path not in whole_names]
    outcomes = [Verification(path, 0, _gone(root, path), gone=True) for path in missing]
    for run in manifest.runs if one is None else (one,):
        _, differences = with_records(root, manifest, run)
        outcomes += [Verification(root / MANIFEST_FILE, 0, _otherwise(root, text)) for text in differences]
        if (problem := history_problem(root, run, manifest)) is not None:
            outcomes.append(Verification(root / run / HISTORY_FILE, 0, problem))
    return outcomes


def _listed_and_gone(root: Path, one: str | None) -> tuple[Manifest, list[str]]:
    """The manifest, and the runs and checkpoints that it lists and the disk does not hold; of one run, or of all."""
    gone: list[str] = []
    for _ in range(_LOOKS):
        manifest = load_manifest(root)
        runs = [run for run in manifest.runs if one in (None, run)]
        lost = [run for run in runs if not (root / run).is_dir()]
        names = present_names(root, {*runs} - {*lost})
        entries = [entry for entry in manifest.entries if entry.run in names]
        gone = lost + [entry.path for entry in entries if entry.name not in names[entry.run]]
        # A run at work may have rotated them away between the two looks; then its manifest has changed too.
        if not gone:
            break
    return manifest, gone


def _gone(root: Path, path: Path) -> IntegrityError:
    what = "run" if path.parent == root else "checkpoint"
    return IntegrityError(
        f"the {what} {path.name} is gone",
        where=str(path),
        why=f"the {what} is gone from the disk, and {MANIFEST_FILE} lists it",
        fix=f"restore it from a copy; `nitro runs {root} --rescan` lists it no longer",
    )


def _otherwise(root: Path, difference: str) -> IntegrityError:
    return IntegrityError(
        "the manifest says otherwise than a record",
        where=str(root / MANIFEST_FILE),
        why=difference,
        fix=f"the record is right: `nitro runs {root} --rescan` takes over what it says",
    )


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
