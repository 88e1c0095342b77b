"""The training program: gradient, accumulation, clipping, optimizer, EMA and divergence guard in one.

The program is a function of a `TrainState` that it replaces, and of inputs that it only reads. Nothing that changes
from step to step, run to run or sweep to sweep is baked into it: hyperparameters enter as rows of a table indexed by
the step, Device fields and anchors as arrays, the order of resident data as indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.experiment import compile_view
from nitro_cli.optim import all_finite, ema_update
from nitro_cli.programs.array_layout import ArrayLayout
from nitro_cli.programs.hook_returns import split_step
from nitro_cli.programs.micro_batches import accumulate
from nitro_cli.programs.models import BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.step_batches import Batches, batch_of
from nitro_cli.programs.step_plan import Row, StepPlan, TrainState, device_values, row_of

__all__ = ["build_train_step", "in_place"]

WISH = "nitro/wish"
"""Name of the number through which processes ask each other for a stop or a save."""


def build_train_step(plan: StepPlan) -> Any:
    """The function to compile: `(TrainState, batches, inputs) -> (TrainState, readback, outputs)`.

    `batches` is a tuple of `accum` mappings of device arrays, a window, or empty with resident data. `inputs` holds
    `rows` f32[BLOCK, K], `device`, `anchors`, `key`, and with resident data `arrays` and `order` int32[batches, size].
    `readback` is one f32 vector whose names `plan.names` holds after tracing: the loss first, then whether the step
    was finite, then loss terms and train metrics.
    """
    return _manual_step(plan) if plan.manual else _automatic_step(plan)


def _automatic_step(plan: StepPlan) -> Any:
    assert plan.optimizer is not None
    optimizer = plan.optimizer

    def train_step(
        carry: TrainState, batches: Batches, inputs: Mapping[str, Any]
    ) -> tuple[TrainState, jax.Array, PyTree]:
        row = row_of(inputs["rows"], carry.step)
        device = device_values(plan.hyper, inputs["device"], carry.step)
        view = compile_view(plan.experiment, device)
        key = jax.random.fold_in(inputs["key"], carry.step)
        grads, new_state, numbers, outputs = accumulate(plan, view, carry, batches, inputs, key, row)
        if plan.layout is not None:
            grads = plan.layout.keep(grads)
        loss = numbers["loss"]
        clip = optimizer.clip(grads, row)

        def updated(old: TrainState) -> TrainState:
            params, opt, _ = optimizer.update(
                grads,
                old.opt,
                old.params,
                row,
                inputs["anchors"],
                value=loss if optimizer.wants_loss else None,
                device=device,
                clip=clip,
            )
            step = old.step + 1
            ema = _averaged(plan, old.ema, params, step, row)
            return TrainState(params, new_state, opt, ema, step, old.position + plan.accum, old.stopped)

        # The norm is finite only if every gradient is, and clipping needs it anyway.
        finite = jax.lax.is_finite(loss) & jax.lax.is_finite(clip[1])
        return *_finish(plan, carry, updated, numbers, finite, inputs), outputs

    return train_step


def _manual_step(plan: StepPlan) -> Any:
    def train_step(
        carry: TrainState, batches: Batches, inputs: Mapping[str, Any]
    ) -> tuple[TrainState, jax.Array, PyTree]:
        row = row_of(inputs["rows"], carry.step)
        device = device_values(plan.hyper, inputs["device"], carry.step)
        view = compile_view(plan.experiment, device)
        key = jax.random.fold_in(jax.random.fold_in(inputs["key"], carry.step), 0)
        batch = batch_of(batches, inputs, carry.position, 0)
        model = BoundModel(plan.model, train=True, key=key)
        opt = plan.hyper.apply_row(carry.opt, row)
        returned = plan.routing.call(view, "train_step", model, carry.params, opt, carry.state, batch=batch)
        loss, params, state, opt, stats = split_step(returned, carry.params, carry.state, carry.opt)
        numbers = {"loss": loss, **stats}

        def updated(old: TrainState) -> TrainState:
            step = old.step + 1
            ema = _averaged(plan, old.ema, params, step, row)
            return TrainState(params, state, opt, ema, step, old.position + 1, old.stopped)

        finite = jnp.isfinite(loss) & all_finite(jax.tree.leaves(params))
        return *_finish(plan, carry, updated, numbers, finite, inputs), None

    return train_step


def _averaged(plan: StepPlan, ema: PyTree, params: PyTree, step: jax.Array, row: Row) -> PyTree:
    """The average of the parameters after this step, if the run keeps one."""
    if not plan.ema:
        return ema
    beta, warmup, every = (row[plan.hyper.column(name)] for name in ("ema_beta", "ema_warmup", "ema_every"))
    return ema_update(ema, params, step, beta, warmup, every)


def _finish(
    plan: StepPlan,
    old: TrainState,
    updated: Callable[[TrainState], TrainState],
    numbers: Mapping[str, jax.Array],
    finite: jax.Array,
    inputs: Mapping[str, Any],
) -> tuple[TrainState, jax.Array]:
    """Update the state unless the step was not finite, and pack what the host reads."""
    good = finite & ~old.stopped
    if not plan.check_divergence:
        new = updated(old)
    elif plan.branches:
        new = jax.lax.cond(good, updated, lambda old: old, old)._replace(stopped=old.stopped | ~finite)
    else:
        kept = jax.tree.map(lambda n, o: jnp.where(good, n, o), updated(old), old)
        new = kept._replace(stopped=old.stopped | ~finite)
    rest = {name: value for name, value in numbers.items() if name != "loss"}
    if plan.shares_wishes:
        rest = {WISH: jnp.max(inputs["wishes"]), **rest}
    plan.names.names = ("loss", "finite", *rest)
    values = [numbers["loss"], finite, *rest.values()]
    readback = jnp.stack([jnp.asarray(value).astype(jnp.float32) for value in values])
    if plan.layout is not None:
        new, readback = in_place(new, plan.layout), plan.layout.same(readback)
    return new, readback


def in_place(carry: TrainState, layout: ArrayLayout) -> TrainState:
    """Inside a traced function: hold a train state where it lies between steps."""
    kept = {name: layout.keep(getattr(carry, name)) for name in ("params", "opt", "ema")}
    return TrainState(**{name: layout.same(leaf) for name, leaf in carry._asdict().items()} | kept)
