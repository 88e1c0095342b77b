"""What setup asks of the rules of a run: something to go by, and checkpoints that are there when they are wanted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from nitro_cli.checkpoints import Retention
from nitro_cli.distributed import process_count
from nitro_cli.errors import ConfigError, nearest, warn
from nitro_cli.experiment import (
    Average,
    Best,
    Checkpointer,
    Last,
    own_store,
    parse_selector,
)
from nitro_cli.run.plan import Settings

__all__ = ["check_rules", "restored_at_the_end"]


def restored_at_the_end(restore_best: Any) -> bool | Average:
    """The `restore_best` of a call: whether training ends with the best weights, or the average that it ends with.

    Raises:
        ConfigError: it is neither; an average may be given as text.
    """
    wanted = parse_selector(restore_best) if isinstance(restore_best, str) else restore_best
    if wanted is None or isinstance(wanted, bool | Average):
        return wanted or False
    raise ConfigError(
        f"restore_best is {restore_best!r}",
        why="it is True, for the best checkpoint, or an average of several",
        fix=f"restore_best=Average({wanted!r})" if hasattr(wanted, "select") else "restore_best=Average(Last(5))",
    )


def check_rules(settings: Settings, splits: Collection[str], restore_best: bool | Average) -> None:
    """Refuse a training run whose rules ask for what it will not have.

    Raises:
        ConfigError: a stop rule or a checkpointer without a `val` split to go by; or `restore_best` wants an average of
            checkpoints that the checkpointer does not keep.

    Warns:
        NitroWarning: the state that training ends in is not kept; or nothing will score the monitor.
    """
    e = settings.experiment
    has_val = "val" in splits
    if e.early_stop is not None and not has_val:
        raise ConfigError(
            "early stopping without a `val` split", fix="return a val split from build_data, or unset early_stop"
        )
    if own_store(e.checkpointer) is not None and e.sharding == "fsdp" and process_count() > 1:
        raise ConfigError(
            f"{type(e.checkpointer).__name__} cannot keep parameters that lie in parts over several processes",
            where="checkpointer",
            why="no process holds a whole record to give it",
            fix='use a Checkpointer, or sharding = "replicated"',
        )
    if isinstance(restore_best, Average):
        _check_kept(settings, restore_best, has_val)
    if isinstance(e.checkpointer, Checkpointer):
        keep = e.checkpointer.keep
        if not has_val and all(isinstance(selector, Best) for selector in keep):
            raise ConfigError(
                "the checkpointer keeps only the best, and there is no `val` split to score them",
                fix='keep = ["last(1)"], or return a val split',
            )
        if not any(isinstance(selector, Last) for selector in keep):
            warn(
                "the checkpointer keeps no last(n): the state training ends in is not kept, and a resume continues "
                "from the newest kept epoch"
            )
    if not has_val:
        _tell_unscored(settings, splits)


def _tell_unscored(settings: Settings, splits: Collection[str]) -> None:
    """Say that no epoch will have a score: where the experiment set a monitor, or where `val` seems misnamed."""
    e, selection = settings.experiment, settings.selection
    names = list(splits)
    meant = [name for name in names if not name.startswith(("train", "test"))]
    meant.sort(key=lambda name: not name.lower().startswith("val"))
    ranks = isinstance(e.checkpointer, Checkpointer) and any(isinstance(s, Best) for s in e.checkpointer.keep)
    if selection is None or not (e.monitor is not None or (ranks and meant)):
        return
    told = f"; is `{(nearest('val', meant) or meant)[0]}` meant? Name it `val`" if meant else ""
    warn(
        f"nothing scores {selection.metric!r}, which the run is judged by: there is no `val` split, only "
        f"{', '.join(names)}{told}"
    )


def _check_kept(settings: Settings, average: Average, has_val: bool) -> None:
    checkpointer = settings.experiment.checkpointer
    selector = average.selector
    if selector.ranks and not has_val:
        why, fix = "there is no `val` split, so no epoch has a score", "average the last ones, or return a val split"
    elif checkpointer is None:
        why, fix = "checkpointer is None: none is written", f'checkpointer = {{ keep = ["{selector}"] }}'
    elif not isinstance(checkpointer, Checkpointer):
        why, fix = f"{type(checkpointer).__name__} gives its best and its latest only", "restore_best=True"
    else:
        selection = settings.selection if has_val else None
        metric, mode = selection or (None, None)
        epochs = settings.experiment.max_epochs
        retention = Retention.of(checkpointer, metric, mode)
        if retention.holds(selector, epochs):
            return
        keep = ", ".join(map(str, checkpointer.keep))
        why = f"of {epochs} epochs keep = [{keep}] may not leave them"
        # `keep` takes no `among`: what the best are chosen from is kept instead.
        needed = selector.among if isinstance(selector, Best) and selector.among is not None else selector
        enough = (*checkpointer.keep, needed)
        if replace(retention, keep=enough).holds(selector, epochs):
            fix = f"keep = [{', '.join(repr(str(rule)) for rule in enough)}]"
        else:
            fix = "average epochs that the run has, or raise max_epochs"
    raise ConfigError(
        f"restore_best = {average} asks for checkpoints that will not be there", where="checkpointer", why=why, fix=fix
    )
