"""What a run is judged by: its monitor, and the metric that its checkpoints are ranked by."""

from __future__ import annotations

from typing import Any

from nitro_cli.errors import ConfigError, nearest

from .hook_table import HookTable
from .knobs import Checkpointer, Criterion, Monitor
from .part_leaves import parts_of
from .protocols import CheckpointStore
from .selectors import Mode

__all__ = ["monitor_of", "monitor_policy", "of_training", "own_store", "selection_of"]


def monitor_of(e: Any) -> Criterion | None:
    """The metric that the run of an experiment is judged by: its `monitor`, or else the loss where that is reported.

    None where the experiment has metrics of its own and says nothing of which to go by.

    Raises:
        ConfigError: nothing says which way the metric is better.
    """
    if isinstance(e.monitor, Monitor):
        return Criterion(e.monitor.metric, e.monitor.mode or _natural_mode(e, e.monitor.metric))
    if e.monitor is not None:
        return Criterion(*e.monitor)
    return Criterion("loss", "min") if not HookTable(e).has("metrics") or e.eval_loss else None


def monitor_policy(e: Any) -> Monitor:
    """What the experiment says of epochs without a usable value of its monitor."""
    return e.monitor if isinstance(e.monitor, Monitor) else Monitor("loss", "min")


def of_training(metric: str) -> bool:
    """Whether a metric is of the train split, so that it is there without any validation."""
    return metric == "train_loss" or metric.startswith("train/")


def _natural_mode(e: Any, metric: str) -> Mode:
    """The direction of the loss, or of a metric of which a part of the experiment knows it."""
    name = metric.removeprefix("train/")
    if metric == "train_loss" or name == "loss" or name.startswith("loss/"):
        return "min"
    found = {name: mode for part in parts_of(e).values() for name, mode in part.directions().items()}
    if name not in found:
        raise ConfigError(
            f"nothing says which way {metric!r} is better",
            where="monitor",
            why="a mode is left out for the loss and for the metrics of a task",
            fix=f'monitor = {{ metric = "{metric}", mode = "max" }} or "min"',
            nearest=nearest(name, found),
        )
    return found[name]  # type: ignore[return-value]  # what it may be is checked where it is used


def own_store(checkpointer: Any) -> CheckpointStore | None:
    """A checkpointer of the experiment's own; None where it is nitro's, or there is none."""
    return None if checkpointer is None or isinstance(checkpointer, Checkpointer) else checkpointer


def selection_of(e: Any) -> Criterion | None:
    """What `best` means for the checkpoints of an experiment: the checkpointer's own metric, or else the monitor.

    A checkpointer of the experiment's own may have `metric` and `mode` as well.
    """
    rule = e.checkpointer
    if isinstance(rule, Checkpointer):
        return rule.watched(monitor_of(e))
    metric: Any = getattr(rule, "metric", None)
    mode: Any = getattr(rule, "mode", None)
    if (metric is None) != (mode is None):
        raise ConfigError(
            f"the checkpointer {type(rule).__name__} has metric {metric!r} and mode {mode!r}",
            fix="give it both, or neither to follow the run's monitor",
        )
    return monitor_of(e) if metric is None else Criterion(metric, mode)
