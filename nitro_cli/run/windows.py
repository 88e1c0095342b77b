"""How many streamed batches may reach the device together, and why not more."""

from __future__ import annotations

import jax
import numpy as np

from nitro_cli.data import FieldSpec, WindowPlan
from nitro_cli.distributed import process_count
from nitro_cli.programs import MOST_STEPS, BatchWindow
from nitro_cli.run.plan import Plan

__all__ = ["traced_window", "window_plan"]

WINDOW_BYTES = 16 * 2**20
"""Of a window at most: it is moved whole, filled or not, and three of them may be there. Steps over larger batches are
so long that a call costs nothing beside them."""


def window_plan(plan: Plan) -> WindowPlan | str:
    """The windows of the train split; or, in words, why every step is a call of its own.

    Args:
        plan: of a run whose training data does not stay on the device.
    """
    split, accum = plan.splits["train"], plan.experiment.accum
    fields = {name: split.fields[name] for name in sorted(plan.hooks.routed.device_fields) if name in split.fields}
    specs = {name: FieldSpec(jax.dtypes.canonicalize_dtype(spec.dtype), spec.shape) for name, spec in fields.items()}
    asked = split.prefetch.window
    if plan.hooks.host_train_metrics:
        return "train metrics are computed on the host"
    if process_count() > 1:
        return "every process has to take the same steps in a call"
    if not specs:
        return "the steps take nothing from a batch"
    if split.prefetch.path == "inline":
        return "every batch is built right before its step (NoPrefetch)"
    if asked is not None and asked < 2 * accum:
        return f"window={asked}" + (f" holds no two steps of {accum} batches" if accum > 1 else "")
    one = WindowPlan(specs, split.batch_size, accum, accum, plan.placement.put_window)
    steps = min(MOST_STEPS, WINDOW_BYTES // max(one.nbytes, 1), (asked or MOST_STEPS * accum) // accum)
    if steps < 2:
        return f"the batches of a step, {one.nbytes:,} bytes, are enough for a call"
    return WindowPlan(specs, split.batch_size, steps * accum, accum, plan.placement.put_window)


def traced_window(windows: WindowPlan) -> BatchWindow:
    """A window by its shapes alone."""
    fields = windows.fields.items()
    return BatchWindow(
        {name: jax.ShapeDtypeStruct(windows.shape(spec), spec.dtype) for name, spec in fields}, np.int32(0)
    )
