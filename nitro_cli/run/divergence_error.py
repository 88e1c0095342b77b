"""What is said when a step diverged: which step, on which batches, and where in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli import programs
from nitro_cli.errors import DivergenceError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import StepPlan
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.state import RunState
from nitro_cli.text import exception_text

__all__ = ["divergence_error"]


def divergence_error(
    plan: Plan,
    state: RunState,
    step_plan: StepPlan,
    inputs: Mapping[str, Any],
    batches: tuple[Any, ...],
    loss: float,
) -> DivergenceError:
    """The error of a step that was undone.

    Args:
        plan: of the run.
        state: before the step.
        step_plan, inputs, batches: what the step was made from and called with.
        loss: its loss.
    """
    accum, position = step_plan.accum, state.position
    batch = position.batch if accum == 1 else f"{position.batch} to {position.batch + accum - 1}"
    what = f"the loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite (the loss is)"
    if step_plan.patience > 1:
        what += f", as in the {step_plan.patience - 1} steps before, which were left out"
    return DivergenceError(
        f"training diverged: {what}",
        where=f"step {position.step + 1}, epoch {position.epoch}, batch {batch}",
        why=f"{_located(plan, state, step_plan, inputs, batches)}. The step was not applied: the weights in hand are "
        "the last good ones",
        fix="resume from the last checkpoint with a lower learning rate or clipping (gradient_clip_norm), or look "
        'at the batch named; check_divergence = "skip" leaves such steps out, false trains on',
    )


def _located(
    plan: Plan, state: RunState, step_plan: StepPlan, inputs: Mapping[str, Any], batches: tuple[Any, ...]
) -> str:
    """Where the step went wrong, by replaying it; a replay that fails says so instead of hiding the error."""
    if step_plan.manual:
        return "the step is the experiment's own, so it is not taken apart"
    step = state.position.step
    before, at = plan.placement.put((np.int32(step), np.int32(state.position.batch)))
    train = state.train._replace(position=at, step=before)
    rows, device = state.rules.hyper.table(step // BLOCK * BLOCK + 1), state.device.inputs(step)
    with Progress.phase("locating the divergence"):
        try:
            found = programs.locate_divergence(step_plan, train, batches, {**inputs, "rows": rows, "device": device})
            return f"the first value that is not finite is {found}"
        except Exception as error:
            return f"replaying the step to find the place failed: {exception_text(error)}"
