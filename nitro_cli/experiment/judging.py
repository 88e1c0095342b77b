"""What a run is judged by: its monitor, and the metric that its checkpoints are ranked by."""

from __future__ import annotations

from typing import Any

from .hooks import has_hook
from .knobs import Checkpointer, Monitor

__all__ = ["monitor_of", "selection_of"]


def monitor_of(e: Any) -> Monitor | None:
    """The metric that the run of an experiment is judged by: its `monitor`, or else the loss where that is reported.

    None where the experiment has metrics of its own and says nothing of which to go by.
    """
    if e.monitor is not None:
        return Monitor(*e.monitor)
    return Monitor("loss", "min") if not has_hook(e, "metrics") or e.eval_loss else None


def selection_of(e: Any) -> Monitor | None:
    """What `best` means for the checkpoints of an experiment: the checkpointer's own metric, or else the monitor.

    A checkpointer of the experiment's own may have `metric` and `mode` as well.
    """
    rule = e.checkpointer
    if isinstance(rule, Checkpointer):
        return rule.watched(monitor_of(e))
    metric, mode = getattr(rule, "metric", None), getattr(rule, "mode", None)
    return monitor_of(e) if metric is None or mode is None else Monitor(metric, mode)
