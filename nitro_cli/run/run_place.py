"""Where a run is written: a directory made, or taken over to go on in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.checkpoints import RunStore, runs
from nitro_cli.distributed import FollowedStore, check_common_directory, is_main, main_says, process_count
from nitro_cli.experiment import Checkpointer
from nitro_cli.run.plan import Plan
from nitro_cli.run.restore import Source

__all__ = ["RunPlace", "continued_run"]


@dataclass(frozen=True)
class RunPlace:
    """Where a run is written: made or taken over, locked, and nothing in it changed yet.

    Attributes:
        store: the run's directory, locked.
        continued: whether the run was there before.
        resumed: the source of a resume, whose record the run goes on from; None for a handle that trains again.
        status: of a run that was there before, how it ended; None for one that was killed.
    """

    store: RunStore | FollowedStore
    continued: bool
    resumed: Source | None
    status: str | None = None

    @classmethod
    def open(cls, plan: Plan, own_run: str | None) -> RunPlace:
        """Make a new run, or take one over.

        A resume continues the run whose newest record it starts from, and branches a new run off any other; a handle
        that trains again continues its own run, `own_run`.

        Raises:
            LockedError: another process is at work on the run.
            StorageError: the directory cannot be written, or several processes do not all see it.
        """
        if is_main():
            place = cls._open(plan, own_run)
            main_says([place.store.id, place.continued])
        else:
            run_id, continued = main_says(None)
            place = cls(FollowedStore(plan.settings.run_dir, run_id), continued, None)
        if process_count() > 1 and plan.experiment.checkpointer is not None:
            try:
                check_common_directory(place.store.path)
            except BaseException:
                let_go = place.store.close if place.continued else place.store.discard
                let_go()
                raise
        return place

    @classmethod
    def _open(cls, plan: Plan, own_run: str | None) -> RunPlace:
        settings, resumed = plan.settings, plan.resumed
        run_dir = settings.run_dir
        metric, mode = settings.selection or (None, None)
        rule = plan.experiment.checkpointer
        kept = rule if isinstance(rule, Checkpointer) else None
        words: dict[str, Any] = {"checkpointer": kept, "metric": metric, "mode": mode}
        if own_run is not None:
            return cls(RunStore.reopen(run_dir, own_run, **words), True, None)
        continued = continued_run(resumed, run_dir)
        if continued is not None:
            status = next((run.status for run in runs(run_dir) if run.id == continued), None)
            entry = resumed.ref.entry if resumed is not None and resumed.ref is not None else None
            store = RunStore.reopen(run_dir, continued, entry, **words)
            return cls(store, True, resumed, None if status in ("running", "interrupted") else status)
        parent = None
        if resumed is not None:
            parent = resumed.text if resumed.ref is None else resumed.ref.parent_of_run_in(run_dir)
        words |= {"experiment": settings.import_path, "preset": settings.resolved.preset, "parent": parent}
        return cls(RunStore.create(run_dir, seed=settings.seed, **words), False, resumed)


def continued_run(resumed: Source | None, run_dir: Path) -> str | None:
    """The run of this very directory that training goes on in, from its newest record; None starts a new run."""
    if resumed is None:
        return None
    if resumed.ref is not None:
        return resumed.ref.run if resumed.ref.continues(run_dir) else None
    return resumed.run if resumed.run is not None and (run_dir / resumed.run).is_dir() else None
