"""The history of a run on disk, with what it is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nitro_cli.cli.run_places import RunPlace, summaries

if TYPE_CHECKING:
    from nitro_cli.metrics import History

__all__ = ["read_history"]


def read_history(place: RunPlace) -> History:
    """Read `history.jsonl` of a run; the best row is the one its newest scored checkpoint is ranked by.

    Raises:
        RunNotFoundError: the run has no history yet.
    """
    from nitro_cli.metrics import History

    summary = next((s for s in summaries(place.root) if s.id == place.id), None)
    best = summary.best if summary is not None else None
    monitor = (best.metric, best.mode) if best is not None and best.metric and best.mode else None
    title = Path(str(summary.experiment)).name.rpartition(":")[2] if summary is not None else None
    return History.read_jsonl(
        place.path / "history.jsonl", monitor=monitor, title=title or None, place=f"{place.root}, run {place.id}"
    )
