"""Validation tried on one batch, so that a mistake in it shows before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nitro_cli.experiment import Checkpointer, EarlyStopping, Experiment
from nitro_cli.metrics import check_scalar
from nitro_cli.run.processes import process_count

if TYPE_CHECKING:
    from nitro_cli.run.handle import Nitro

__all__ = ["rehearse_validation"]


def rehearse_validation(nitro: Nitro) -> None:
    """Take the first batch of the `val` split through what validation does; nothing is kept of it.

    With several processes, each of which holds a part of the split, the first whole pass is what shows a mistake.

    Raises:
        MetricError: a metric that something goes by is not reported; and whatever `metrics` raises.
    """
    if "val" not in nitro.parts.splits or process_count() > 1:
        return
    found = nitro.evaluator.rehearse("val", nitro.eval_params(), nitro.carry.state)
    if found is not None:
        for what, metric in _followed(nitro.parts.experiment):
            check_scalar(found.get(metric), what, found)


def _followed(e: Experiment) -> Iterator[tuple[str, str]]:
    """What goes by a metric, in words, and which."""
    if e.monitor is not None:
        yield f"monitor {e.monitor[0]!r}", e.monitor[0]
    if isinstance(e.early_stop, EarlyStopping) and e.early_stop.metric is not None:
        yield f"early stopping on {e.early_stop.metric!r}", e.early_stop.metric
    if isinstance(e.checkpointer, Checkpointer) and e.checkpointer.metric is not None:
        yield f"the checkpointer's metric {e.checkpointer.metric!r}", e.checkpointer.metric
