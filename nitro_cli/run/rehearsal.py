"""Validation tried on one batch, so that a mistake in it shows before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.distributed import process_count
from nitro_cli.metrics import check_scalar
from nitro_cli.run.judged_metrics import judged_metrics

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
        for what, metric in judged_metrics(nitro.parts):
            check_scalar(found.get(metric), f"metric {metric!r} of {what}", found)
