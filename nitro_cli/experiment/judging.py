"""What a run is judged by: its monitor, and the metric that its checkpoints are ranked by."""

from __future__ import annotations

from typing import Any

from nitro_cli.errors import ConfigError

from .hook_table import HookTable
from .knobs import Checkpointer, Monitor
from .protocols import CheckpointStore

__all__ = ["monitor_of", "own_store", "selection_of"]


def monitor_of(e: Any) -> Monitor | None:
    """The metric that the run of an experiment is judged by: its `monitor`, or else the loss where that is reported.

    None where the experiment has metrics of its own and says nothing of which to go by.
    """
    if e.monitor is not None:
        return Monitor(*e.monitor)
    return Monitor("loss", "min") if not HookTable(e).has("metrics") or e.eval_loss else None


def own_store(checkpointer: Any) -> CheckpointStore | None:
    """A checkpointer of the experiment's own; None where it is nitro's, or there is none."""
    return None if checkpointer is None or isinstance(checkpointer, Checkpointer) else checkpointer


def selection_of(e: Any) -> Monitor | None:
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
    return monitor_of(e) if metric is None else Monitor(metric, mode)
