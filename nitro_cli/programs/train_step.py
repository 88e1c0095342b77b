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
from nitro_cli.programs.readback import Outcome, ReadbackLayout, StepNumbers
from nitro_cli.programs.step_batches import Batches, batch_of
from nitro_cli.programs.step_plan import Row, StepPlan, TrainState, device_values, row_of

__all__ = ["build_train_step", "in_place"]


def build_train_step(plan: StepPlan) -> Any:
    """The function to compile: `(TrainState, batches, inputs) -> (TrainState, readback, outputs)`.

    `batches` is a tuple of `accum` mappings of device arrays, a window, or empty with resident data. `inputs` holds
    `rows` f32[BLOCK, K], `device`, `anchors`, `key`, and with resident data `arrays` and `order` int32[batches, size].
    `readback` is one f32 vector whose layout `plan.names` holds after tracing.
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
        key = jax.random.fold_in(inputs["key"], carry.step)
        grads, new_state, numbers, outputs = accumulate(plan, device, carry, batches, inputs, key, row)
        if plan.layout is not None:
            grads = plan.layout.keep(grads)
        loss = numbers.loss
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
            ema = _averaged(plan, old.ema, params, old.step + 1, row)
            return old._replace(params=params, state=new_state, opt=opt, ema=ema)

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
        numbers = StepNumbers({"loss": loss, **stats}, {}, {})

        def updated(old: TrainState) -> TrainState:
            ema = _averaged(plan, old.ema, params, old.step + 1, row)
            return old._replace(params=params, state=state, opt=opt, ema=ema)

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
    numbers: StepNumbers,
    finite: jax.Array,
    inputs: Mapping[str, Any],
) -> tuple[TrainState, jax.Array]:
    """Update the state unless the step is not to be taken, and pack what the host reads.

    A step that is not taken still uses up its number and its batches, unless it ends the run.
    """
    empty, stopped, failed = numbers.empty, old.stopped, old.failed
    odd = ~finite if empty is None else ~finite & ~empty
    if plan.patience == 1:
        stopped = stopped | odd
    elif failed is not None:
        failed = jnp.where(odd, failed + 1, failed if empty is None else jnp.where(empty, failed, 0))
        stopped = stopped | (failed >= plan.patience)
    outcome = jnp.where(stopped, Outcome.DIVERGED, Outcome.TAKEN)
    if plan.patience > 1:
        outcome = jnp.where(odd & ~stopped, Outcome.NONFINITE, outcome)
    if empty is not None:
        outcome = jnp.where(empty & ~stopped, Outcome.EMPTY, outcome)
    taken = outcome == Outcome.TAKEN
    if not plan.patience and empty is None:
        new = updated(old)
    elif plan.branches:
        new = jax.lax.cond(taken, updated, lambda old: old, old)
    else:
        new = jax.tree.map(lambda n, o: jnp.where(taken, n, o), updated(old), old)
    on = (~stopped).astype(old.step.dtype)
    new = new._replace(step=old.step + on, position=old.position + plan.accum * on, stopped=stopped, failed=failed)
    wish = jnp.max(inputs["wishes"]) if plan.shares_wishes else None
    layout = ReadbackLayout.of(numbers, of_metrics=not plan.manual, shares_wishes=plan.shares_wishes)
    plan.names.layout = layout
    readback = layout.packed(outcome, wish, numbers)
    if plan.layout is not None:
        new, readback = in_place(new, plan.layout), plan.layout.same(readback)
    return new, readback


def in_place(carry: TrainState, layout: ArrayLayout) -> TrainState:
    """Inside a traced function: hold a train state where it lies between steps."""
    kept = {name: layout.keep(getattr(carry, name)) for name in ("params", "opt", "ema")}
    return TrainState(**{name: layout.same(leaf) for name, leaf in carry._asdict().items()} | kept)
