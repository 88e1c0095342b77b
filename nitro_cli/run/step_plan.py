"""What the training program of a run is made from."""

from __future__ import annotations

from nitro_cli.distributed import process_count
from nitro_cli.errors import ConfigError
from nitro_cli.programs import StepPlan
from nitro_cli.run.plan import Plan

__all__ = ["step_plan", "trains_resident"]


def trains_resident(plan: Plan) -> bool:
    """Whether the train split stays on the devices, whole on each, where steps gather their batches.

    Several processes hold a share of it each, and take the same steps in a call only where they count them alike.
    """
    train = plan.splits.get("train")
    return (
        train is not None
        and train.resident is not None
        and not plan.hooks.host_train_metrics
        and (process_count() == 1)
    )


SKIPPED_IN_A_ROW = 10
"""Steps in a row that are not finite and end a run that skips them."""


def step_plan(plan: Plan) -> StepPlan:
    """The plan of the step program, from what setup decided.

    Raises:
        ConfigError: train metrics on the host, in a run of several processes.
    """
    e, placement = plan.experiment, plan.placement
    host_metrics = plan.hooks.host_train_metrics
    if host_metrics and process_count() > 1:
        raise ConfigError(
            "`train_metrics` on the host, in a run of several processes",
            why="no process holds the whole batch",
            fix="compute them inside the program: metrics_residency('train_metrics') -> 'device'",
        )
    train = plan.splits["train"]
    return StepPlan(
        experiment=e,
        routing=plan.hooks.routed,
        model=plan.model.adapted,
        optimizer=plan.optim.optimizer,
        hyper=plan.optim.hyper,
        rule=plan.optim.rule,
        accum=e.accum,
        incomplete=train.padding is not None and train.batches > train.padding.split.batches,
        patience=SKIPPED_IN_A_ROW if e.check_divergence == "skip" else int(e.check_divergence),
        branches=placement.on_host,
        ema=e.ema is not None,
        manual=plan.hooks.manual,
        outputs_to_host=host_metrics,
        layout=placement.layout,
        shares_wishes=process_count() > 1,
    )
