"""What setup asks of the rules of a run: something to go by, and checkpoints that are there when they are wanted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nitro_cli.checkpoints import check_averaged, check_retention
from nitro_cli.distributed import process_count
from nitro_cli.errors import ConfigError, nearest, warn
from nitro_cli.experiment import Average, Best, Checkpointer, EarlyStopping, of_training, own_store, parse_selector
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
    scored = has_val or (settings.selection is not None and of_training(settings.selection.metric))
    watched = e.early_stop.watched(settings.monitor) if isinstance(e.early_stop, EarlyStopping) else None
    if e.early_stop is not None and not has_val and not (watched is not None and of_training(watched.metric)):
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
        metric, mode = settings.selection or (None, None)
        check_averaged(e.checkpointer, restore_best, e.max_epochs, metric=metric, mode=mode, scored=scored)
    if isinstance(e.checkpointer, Checkpointer):
        check_retention(e.checkpointer, scored=scored)
    if not scored:
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
