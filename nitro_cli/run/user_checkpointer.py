"""A checkpointer of the experiment's own: any object that keeps records, and gives its latest and its best back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nitro_cli.checkpoints import CheckpointRecord, RecordMeta
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, HookError, RunNotFoundError

if TYPE_CHECKING:
    from nitro_cli.experiment import CheckpointStore

__all__ = ["load_own", "save_own"]


def save_own(store: CheckpointStore, record: CheckpointRecord, *, epoch: int, step: int, score: float | None) -> bool:
    """Give a record to the store, and say whether it took it; what `save` raises ends the run."""
    return store.save(record, epoch=epoch, step=step, score=score) is not False


def load_own(store: CheckpointStore, run: str, which: Any) -> tuple[CheckpointRecord, str]:
    """The latest or the best record of a store, and what to call it.

    Args:
        store: the checkpointer.
        run: `latest`, or the id of the run (or its beginning) that the record must be of.
        which: `latest` or `best`.

    Raises:
        ConfigError: something else is asked for.
        CheckpointNotFoundError, RunNotFoundError: the store has no such record, or one of another run.
        HookError: `load` gave no record back.
    """
    name = type(store).__name__
    if run == "all" or which not in ("latest", "best"):
        raise ConfigError(
            f"{name} knows no {run}:{which}",
            why="a checkpointer of one's own gives its latest and its best record, and keeps no list of runs",
            fix="use `latest:latest` or `latest:best`",
        )
    found = store.find_latest() if which == "latest" else store.find_best()
    if found is None:
        raise CheckpointNotFoundError(f"{name} has no {which} record", where=f"{name}.find_{which}")
    record = store.load(found)
    if not isinstance(record, CheckpointRecord) or not isinstance(record.meta, RecordMeta):
        held = "" if not isinstance(record, CheckpointRecord) else f" with a {type(record.meta).__name__} as metadata"
        raise HookError(
            f"`{name}.load` returned {type(record).__name__}{held}",
            where=f"{name}.load({found!r})",
            fix="return the CheckpointRecord that `save` was given: CheckpointRecord.from_json(meta, arrays)",
        )
    of = record.meta.run or ""
    if run != "latest" and not of.startswith(run):
        raise RunNotFoundError(
            f"the {which} record of {name} is of the run {of or 'nobody'}, not of {run}",
            where=f"{name}.find_{which}",
        )
    return record, f"{name}: {found}"
