"""A run's history as its newest record has it, with what history.jsonl adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import IncompatibleError, IntegrityError, NotFoundError, StorageError, warn
from nitro_cli.metrics import history_difference, settled_rows

from .entries import Manifest
from .manifest import load_manifest
from .record_metadata import record_info
from .summaries import summarize

if TYPE_CHECKING:
    from nitro_cli.metrics import History

__all__ = ["HISTORY_FILE", "history_problem", "read_history"]

HISTORY_FILE = "history.jsonl"
_TRIES = 5


def read_history(root: Path, run: str) -> History:
    """The history of a run; the best row is the one its newest scored checkpoint is ranked by.

    The rows are those of the run's newest record, then those that `history.jsonl` has of later epochs.

    Args:
        root: the directory of the runs.
        run: id of the run.

    Raises:
        RunNotFoundError, IntegrityError, StorageError: there is no record to take the rows from, and history.jsonl is
            gone, damaged or cannot be read.

    Warns:
        NitroWarning: the file says otherwise than the record.
    """
    from nitro_cli.metrics import History  # what verifies a run shows no history

    manifest = load_manifest(root)
    summary = next((s for s in summarize(root, manifest) if s.id == run), None)
    best = summary.best if summary is not None else None
    monitor = (best.metric, best.mode) if best is not None and best.metric and best.mode else None
    title = Path(summary.experiment).name.rpartition(":")[2] if summary is not None else None
    rows, problem = _settled(root, run, manifest)
    if problem is not None:
        warn(f"{root / run / HISTORY_FILE}: {problem}")
    place = f"{root}, run {run}"
    return History.from_json_rows(rows, origin=str(root / run), monitor=monitor, title=title or None, place=place)


def _settled(root: Path, run: str, manifest: Manifest) -> tuple[list[Mapping[str, Any]], str | None]:
    """The rows of a run, and what its history.jsonl says otherwise than its newest record, which is the truth."""
    held = _recorded_rows(root, run, manifest)
    rows, problem = settled_rows(root / run / HISTORY_FILE, held or [])
    if problem is not None:
        problem = f"{problem}; what the records say is taken"
    if held is None and manifest.of_run(run):
        problem = "no record of the run can be read, so its numbers are those of the file alone"
    return rows, problem


def history_problem(root: Path, run: str, manifest: Manifest) -> IntegrityError | None:
    """The error for a history.jsonl that says otherwise than the run's newest record; None where they agree."""
    file = root / run / HISTORY_FILE
    problem = history_difference(file, _recorded_rows(root, run, manifest) or [])
    if problem is None:
        return None
    return IntegrityError(
        "the history says otherwise than the newest record",
        where=str(file),
        why=problem,
        fix="the record is right: `nitro history` shows what it says, and a resume writes the file anew",
    )


def _recorded_rows(root: Path, run: str, manifest: Manifest) -> list[Mapping[str, Any]] | None:
    """The rows in the newest of the run's last few records that can be read; None where none can."""
    entries = sorted(manifest.of_run(run), key=lambda entry: (entry.step, entry.epoch))
    for entry in reversed(entries[-_TRIES:]):
        try:
            return list(record_info(root / entry.path).meta.history)
        except (IntegrityError, IncompatibleError, NotFoundError, StorageError):
            # Damage to a record is told by whoever loads it; the one before it is as true.
            continue
    return None
