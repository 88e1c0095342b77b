"""The history of a run on disk, with what it is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nitro_cli.cli.run_places import FoundRun
from nitro_cli.errors import warn

if TYPE_CHECKING:
    from nitro_cli.metrics import History

__all__ = ["read_history"]


def read_history(place: FoundRun) -> History:
    """Read the history of a run; the best row is the one its newest scored checkpoint is ranked by.

    The rows are those of the run's newest record, then those that `history.jsonl` has of later epochs.

    Raises:
        RunNotFoundError: the run has no history yet.
        IntegrityError: there is no record, and the file is damaged.

    Warns:
        NitroWarning: the file says otherwise than the record.
    """
    from nitro_cli.checkpoints import load_manifest, run_history, summarize
    from nitro_cli.metrics import History

    manifest = load_manifest(place.root)
    summary = next((s for s in summarize(place.root, manifest) if s.id == place.id), None)
    best = summary.best if summary is not None else None
    monitor = (best.metric, best.mode) if best is not None and best.metric and best.mode else None
    title = Path(str(summary.experiment)).name.rpartition(":")[2] if summary is not None else None
    rows, problem = run_history(place.root, place.id, manifest)
    if problem is not None:
        warn(f"{place.path / 'history.jsonl'}: {problem}")
    where = f"{place.root}, run {place.id}"
    return History.from_json_rows(rows, origin=str(place.path), monitor=monitor, title=title or None, place=where)
