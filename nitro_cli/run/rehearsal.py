"""Validation tried on one batch, so that a mistake in it shows before anything is trained."""

from __future__ import annotations

from nitro_cli.distributed import process_count
from nitro_cli.metrics import check_scalar
from nitro_cli.run.evaluation import Evaluator
from nitro_cli.run.judged_metrics import judged_metrics
from nitro_cli.run.plan import Plan
from nitro_cli.run.state import RunState

__all__ = ["rehearse_validation"]


def rehearse_validation(plan: Plan, run: RunState, evaluator: Evaluator) -> None:
    """Take the first batch of the `val` split through what validation does; nothing is kept of it.

    With several processes, each of which holds a part of the split, the first whole pass is what shows a mistake.

    Args:
        plan, run: of the handle.
        evaluator: of the same.

    Raises:
        MetricError: a metric that something goes by is not reported; and whatever `metrics` raises.
    """
    if "val" not in plan.splits or process_count() > 1:
        return
    found = evaluator.rehearse("val", run)
    if found is not None:
        for what, metric in judged_metrics(plan):
            check_scalar(found.get(metric), f"metric {metric!r} of {what}", found)
