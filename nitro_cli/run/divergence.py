"""What is said when a step diverged: which step, on which batches, and where in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli import programs
from nitro_cli.errors import DivergenceError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import StepPlan
from nitro_cli.run.hyper_rows import device_inputs
from nitro_cli.run.progress import Progress
from nitro_cli.text import exception_text

if TYPE_CHECKING:
    from nitro_cli.run.handle import Nitro

__all__ = ["divergence_error"]


def divergence_error(
    nitro: Nitro, plan: StepPlan, inputs: Mapping[str, Any], batches: tuple[Any, ...], step: int, loss: float
) -> DivergenceError:
    """The error of a step that was undone; the handle stands before it.

    Args:
        nitro: the handle, holding the state before the step.
        plan, inputs, batches: what the step was made from and called with.
        step: the step, from 1.
        loss: its loss.
    """
    accum, position = plan.accum, nitro.parts.position
    batch = position if accum == 1 else f"{position} to {position + accum - 1}"
    what = f"the loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite (the loss is)"
    return DivergenceError(
        f"training diverged: {what}",
        where=f"step {step}, epoch {nitro.epoch}, batch {batch}",
        why=f"{_located(nitro, plan, inputs, batches, step)}. The step was not applied: the weights in hand are the "
        "last good ones",
        fix="resume from the last checkpoint with a lower learning rate or clipping (gradient_clip_norm), or look "
        "at the batch named; check_divergence = false trains on",
    )


def _located(nitro: Nitro, plan: StepPlan, inputs: Mapping[str, Any], batches: tuple[Any, ...], step: int) -> str:
    """Where the step went wrong, by replaying it; a replay that fails says so instead of hiding the error."""
    if plan.manual:
        return "the step is the experiment's own, so it is not taken apart"
    parts = nitro.parts
    before, at = parts.placement.put((np.int32(step - 1), np.int32(parts.position)))
    carry = nitro.carry._replace(position=at, step=before)
    rows, device = parts.hyper.table((step - 1) // BLOCK * BLOCK + 1), device_inputs(parts, step - 1)
    with Progress.phase("locating the divergence"):
        try:
            found = programs.locate_divergence(plan, carry, batches, {**inputs, "rows": rows, "device": device})
            return f"the first value that is not finite is {found}"
        except Exception as error:
            return f"replaying the step to find the place failed: {exception_text(error)}"
