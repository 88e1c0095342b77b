"""The training program: gradient, accumulation, clipping, optimizer, EMA and divergence guard in one.

The program is a function of a `TrainState` that it replaces, and of inputs that it only reads. Nothing that changes
from step to step, run to run or sweep to sweep is baked into it: hyperparameters enter as rows of a table indexed by
the step, Device fields and anchors as arrays, the order of resident data as indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.errors import HookError
from nitro_cli.experiment import Experiment, Routing, compile_view
from nitro_cli.optim import BLOCK, Hyper, Optimizer, PerturbRule, all_finite, ema_update, in_accumulators
from nitro_cli.programs.array_layout import ArrayLayout
from nitro_cli.programs.hook_returns import check_same_tree, scalars, split_loss, split_step
from nitro_cli.programs.models import AdaptedModel, BoundModel
from nitro_cli.programs.models.adapted import PyTree

__all__ = [
    "StepNames",
    "StepPlan",
    "TrainState",
    "batch_of",
    "build_train_step",
    "device_values",
    "forward",
    "in_place",
    "row_of",
]

Row = jax.Array | Sequence[jax.Array]
"""The hyperparameters of a step, by column."""

WISH = "nitro/wish"
"""Name of the number through which processes ask each other for a stop or a save."""


class TrainState(NamedTuple):
    """What a step replaces.

    Attributes:
        params, state: the model's parameters and layer state.
        opt: optimizer state, by group.
        ema: exponential moving average of the parameters, or None.
        step: optimizer steps taken, int32[].
        position: micro-batches taken in this epoch, int32[].
        stopped: whether a non-finite loss or gradient was met, bool[]; once True no step changes anything.
    """

    params: PyTree
    state: PyTree
    opt: PyTree
    ema: PyTree
    step: jax.Array
    position: jax.Array
    stopped: jax.Array


@dataclass
class StepNames:
    """What the numbers of a step's readback are called; known once the program was traced."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepPlan:
    """Everything the program is made from.

    Attributes:
        experiment: the experiment; its Host fields are out of reach of the traced code.
        routing: which batch fields each hook takes.
        model: the adapted model.
        optimizer: the groups' rules; None in manual mode.
        hyper: where each traced hyperparameter stands in a row.
        rule: the perturbing gradient rule, or None for the plain gradient.
        accum: micro-batches per optimizer step.
        scan: fold the micro-batches in a loop inside the program instead of writing them out.
        check_divergence: guard against non-finite losses and gradients.
        branches: the guard leaves the update out by a branch, which costs nothing on a CPU; elsewhere a branch would
            wait for the device, and both states are computed and one chosen.
        ema: keep an average of the parameters.
        resident: batches are gathered from arrays on the device.
        manual: the experiment's own `train_step` does the whole step.
        outputs_to_host: also return the micro-batches' outputs, stacked (train metrics computed on the host).
        layout: how arrays lie on several devices; None on one.
        shares_wishes: several processes train: `inputs["wishes"]` holds what each asks for, and the largest comes back
            behind `finite`, so that all learn of it at the same step.
    """

    experiment: Experiment
    routing: Routing
    model: AdaptedModel
    optimizer: Optimizer | None
    hyper: Hyper
    rule: PerturbRule | None = None
    accum: int = 1
    scan: bool = False
    check_divergence: bool = True
    branches: bool = False
    ema: bool = False
    resident: bool = False
    manual: bool = False
    outputs_to_host: bool = False
    layout: ArrayLayout | None = None
    shares_wishes: bool = False
    names: StepNames = field(default_factory=StepNames)


def device_values(hyper: Hyper, device: Mapping[str, jax.Array], step: jax.Array) -> dict[str, jax.Array]:
    """The Device fields of a step: of those that a schedule can drive their value at it, the others as they are.

    Args:
        hyper: says which those are.
        device: the fields by name, those with a value for every step of the block.
        step: optimizer steps taken before, int32[].
    """
    at = jax.lax.rem(step, np.int32(BLOCK))
    stepped = {name: jax.lax.dynamic_index_in_dim(device[name], at, keepdims=False) for name in hyper.device_fields}
    return {**device, **stepped}


def build_train_step(plan: StepPlan) -> Any:
    """The function to compile: `(TrainState, batches, inputs) -> (TrainState, readback, outputs)`.

    `batches` is a tuple of `accum` mappings of device arrays, or empty with resident data. `inputs` holds `rows`
    f32[BLOCK, K], `device`, `anchors`, `key`, and with resident data `arrays` and `order` int32[batches, size].
    `readback` is one f32 vector whose names `plan.names` holds after tracing: the loss first, then whether the step
    was finite, then loss terms and train metrics.
    """
    return _manual_step(plan) if plan.manual else _automatic_step(plan)


def _automatic_step(plan: StepPlan) -> Any:
    assert plan.optimizer is not None
    optimizer = plan.optimizer

    def train_step(
        carry: TrainState, batches: Sequence[Mapping[str, jax.Array]], inputs: Mapping[str, Any]
    ) -> tuple[TrainState, jax.Array, PyTree]:
        row = row_of(inputs["rows"], carry.step)
        device = device_values(plan.hyper, inputs["device"], carry.step)
        view = compile_view(plan.experiment, device)
        key = jax.random.fold_in(inputs["key"], carry.step)
        grads, new_state, numbers, outputs = _accumulate(plan, view, carry, batches, inputs, key, row)
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


def row_of(rows: jax.Array, step: jax.Array) -> tuple[jax.Array, ...]:
    """The hyperparameters of a step, one by one: cut out by plain slices, which cost a start less than indexing."""
    row = jax.lax.dynamic_index_in_dim(rows, jax.lax.rem(step, np.int32(BLOCK)), keepdims=False)
    return tuple(jax.lax.index_in_dim(row, column, keepdims=False) for column in range(rows.shape[1]))


def _manual_step(plan: StepPlan) -> Any:
    def train_step(
        carry: TrainState, batches: Sequence[Mapping[str, jax.Array]], inputs: Mapping[str, Any]
    ) -> tuple[TrainState, jax.Array, PyTree]:
        row = row_of(inputs["rows"], carry.step)
        device = device_values(plan.hyper, inputs["device"], carry.step)
        view = compile_view(plan.experiment, device)
        key = jax.random.fold_in(jax.random.fold_in(inputs["key"], carry.step), 0)
        batch = batch_of(plan, batches, inputs, carry.position, 0)
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


def _batch_size(batches: Sequence[Mapping[str, jax.Array]]) -> int:
    return next((array.shape[0] for batch in batches for array in batch.values()), -1)


def _accumulate(
    plan: StepPlan,
    view: Experiment,
    carry: TrainState,
    batches: Sequence[Mapping[str, jax.Array]],
    inputs: Mapping[str, Any],
    key: jax.Array,
    row: Row,
) -> tuple[PyTree, PyTree, dict[str, jax.Array], PyTree]:
    """The micro-batches together: gradient and numbers the mean over them, layer state passed through each in turn.

    Returns:
        `(gradient, layer state, numbers, outputs)`, the outputs those of every micro-batch, stacked on a first axis.
    """

    def micro(state: PyTree, batch: Mapping[str, jax.Array], index: Any) -> Any:
        grads, state, numbers, outputs = _gradient(
            plan, view, carry.params, state, batch, jax.random.fold_in(key, index), row
        )
        if plan.layout is not None:
            outputs = plan.layout.rows(outputs, _batch_size(batches))
        return grads, state, numbers, outputs

    grads, state, total, outputs = micro(carry.state, batch_of(plan, batches, inputs, carry.position, 0), 0)
    kept = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs)
    if plan.accum == 1:
        return grads, state, total, kept
    # In half precision a sum of gradients would lose what is added to it.
    summed = in_accumulators(grads)
    if plan.scan:
        stacked = None if plan.resident else jax.tree.map(lambda *xs: jnp.stack(xs), *batches[1:])

        def body(acc: Any, index: jax.Array) -> Any:
            batch = (
                batch_of(plan, batches, inputs, carry.position, index)
                if stacked is None
                else jax.tree.map(lambda x: x[index - 1], stacked)
            )
            g, s, n, outputs = micro(acc[1], batch, index)
            return (jax.tree.map(_added, acc[0], g), s, jax.tree.map(jnp.add, acc[2], n)), outputs

        (summed, state, total), rest = jax.lax.scan(body, (summed, state, total), jnp.arange(1, plan.accum))
        kept = jax.tree.map(lambda one, others: jnp.concatenate([one, others]), kept, rest)
    else:
        rest = []
        for index in range(1, plan.accum):
            batch = batch_of(plan, batches, inputs, carry.position, index)
            g, state, n, outputs = micro(state, batch, index)
            summed, total = jax.tree.map(_added, summed, g), jax.tree.map(jnp.add, total, n)
            rest.append(outputs)
        kept = jax.tree.map(lambda one, *others: jnp.concatenate([one, jnp.stack(others)]), kept, *rest)
    grads, mean = jax.tree.map(lambda x: x / plan.accum, (summed, total))
    return grads, state, mean, kept


def _added(total: jax.Array, new: jax.Array) -> jax.Array:
    return total + (new if new.dtype == total.dtype else new.astype(total.dtype))


def _gradient(
    plan: StepPlan,
    view: Experiment,
    params: PyTree,
    state: PyTree,
    batch: Mapping[str, jax.Array],
    key: jax.Array,
    row: Row,
) -> tuple[PyTree, PyTree, dict[str, jax.Array], PyTree]:
    """One micro-batch: `(gradient, new layer state, numbers, outputs)`, the numbers in float32."""
    routing = plan.routing

    def objective(p: PyTree) -> Any:
        model = BoundModel(plan.model, train=True, key=key)
        outputs, new_state = forward(view, model, p, state, routing, batch)
        loss, terms = split_loss(routing.call(view, "loss", outputs, batch=batch))
        numbers = {"loss": loss, **{f"loss/{name}": value for name, value in terms.items()}}
        if routing.table.has("train_metrics") and not plan.outputs_to_host:
            returned = routing.call(view, "train_metrics", outputs, batch=batch)
            numbers |= scalars(returned, "train_metrics", numbers)
        numbers = {name: value.astype(jnp.float32) for name, value in numbers.items()}
        return loss, (new_state, numbers, outputs if plan.outputs_to_host else None)

    gradient = jax.value_and_grad(objective, has_aux=True)
    (_, (new_state, numbers, outputs)), grads = gradient(params)
    if plan.rule is not None:
        assert plan.optimizer is not None
        perturbed = plan.optimizer.perturb(plan.rule, grads, params, row)
        _, grads = gradient(perturbed)
    check_same_tree("forward", "the layer state", state, new_state)
    return grads, new_state, numbers, outputs


def forward(
    view: Experiment, model: BoundModel, params: PyTree, state: PyTree, routing: Routing, batch: Mapping[str, Any]
) -> tuple[PyTree, PyTree]:
    """Call the `forward` hook and check that it returned `(outputs, state)`."""
    returned = routing.call(view, "forward", model, params, state, batch=batch)
    if not isinstance(returned, tuple) or len(returned) != 2:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise HookError(
            f"`forward` returned {type(returned).__name__}{size}",
            why="it must return the pair (outputs, new_state)",
            fix="return model(params, state, ...), or (outputs, state)",
        )
    return returned


def batch_of(
    plan: StepPlan,
    batches: Sequence[Mapping[str, jax.Array]],
    inputs: Mapping[str, Any],
    position: jax.Array,
    index: Any,
) -> Mapping[str, jax.Array]:
    """One micro-batch of a step: as it came, or gathered from the resident arrays."""
    if not plan.resident:
        return batches[index]
    order = inputs["order"]
    rows = jax.lax.dynamic_index_in_dim(order, position + index, axis=0, keepdims=False)
    # Without the barriers XLA computes the indices and gathers anew for every use of the batch.
    rows = jax.lax.optimization_barrier(rows)
    return jax.lax.optimization_barrier({name: _rows_of(array, rows) for name, array in inputs["arrays"].items()})


def _rows_of(array: jax.Array, rows: jax.Array) -> jax.Array:
    """`array[rows]`, as the one operation it is."""
    return jax.lax.gather(
        array,
        rows[:, None],
        jax.lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, array.ndim)), collapsed_slice_dims=(0,), start_index_map=(0,)
        ),
        slice_sizes=(1, *array.shape[1:]),
        mode="promise_in_bounds",
    )
