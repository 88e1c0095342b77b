"""What the training program of a handle is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.distributed import process_count
from nitro_cli.errors import ConfigError
from nitro_cli.programs import StepPlan

if TYPE_CHECKING:
    from nitro_cli.run.parts import Parts

__all__ = ["step_plan"]


def step_plan(parts: Parts) -> StepPlan:
    """The plan of the step program, from what setup built.

    Raises:
        ConfigError: train metrics on the host, in a run of several processes.
    """
    e = parts.experiment
    train = parts.splits["train"]
    host_metrics = parts.host_train_metrics
    if host_metrics and process_count() > 1:
        raise ConfigError(
            "`train_metrics` on the host, in a run of several processes",
            why="no process holds the whole batch",
            fix="compute them inside the program: metrics_residency('train_metrics') -> 'device'",
        )
    resident = train.resident is not None and not host_metrics and parts.placement.count == 1
    return StepPlan(
        experiment=e,
        routing=parts.routing,
        model=parts.model,
        optimizer=parts.optimizer,
        hyper=parts.hyper,
        rule=parts.rule,
        accum=e.accum,
        check_divergence=e.check_divergence,
        branches=parts.placement.on_host,
        ema=e.ema is not None,
        resident=resident,
        manual=parts.manual,
        outputs_to_host=host_metrics,
        layout=parts.placement.layout,
        shares_wishes=process_count() > 1,
    )
