"""The micro-batches of a step together: their gradient, their numbers, and the layer state passed through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.experiment import VALID, compile_view
from nitro_cli.optim import in_accumulators
from nitro_cli.programs.denominators import LossTrace
from nitro_cli.programs.hook_returns import check_same_tree, split_loss, split_metrics
from nitro_cli.programs.models import BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.readback import StepNumbers
from nitro_cli.programs.step_batches import REAL, Batches, BatchWindow, batch_of, one_by_one
from nitro_cli.programs.step_plan import Row, StepPlan, TrainState, forward

__all__ = ["accumulate"]

Totals = dict[str, jax.Array]
"""The denominators of a step's loss terms."""


def accumulate(
    plan: StepPlan,
    device: Mapping[str, jax.Array],
    carry: TrainState,
    batches: Batches,
    inputs: Mapping[str, Any],
    key: jax.Array,
    row: Row,
) -> tuple[PyTree, PyTree, StepNumbers, PyTree]:
    """The micro-batches together: their gradient and numbers, layer state passed through each in turn.

    A scalar loss and plain numbers are the mean over them. Loss terms add up: each numerator is divided by the
    denominator of all micro-batches, found before.

    Returns:
        `(gradient, layer state, numbers, outputs)`, the outputs those of every micro-batch, stacked on a first axis.
    """

    def batch_at(index: Any) -> Mapping[str, jax.Array]:
        return batch_of(batches, inputs, carry.position, index)

    totals = None if plan.accum == 1 else _totals(plan, device, carry, batches, inputs, key)

    def micro(state: PyTree, batch: Mapping[str, jax.Array], index: Any) -> Any:
        grads, state, numbers, outputs = _gradient(
            plan, device, carry.params, state, batch, jax.random.fold_in(key, index), row, totals
        )
        if plan.layout is not None:
            outputs = plan.layout.rows(outputs, _batch_size(batch))
        return grads, state, numbers, outputs

    grads, state, total, outputs = micro(carry.state, batch_at(0), 0)
    kept = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs)
    if plan.accum == 1:
        return grads, state, total, kept

    def one(acc: Any, batch: Mapping[str, jax.Array], index: Any) -> Any:
        g, s, n, outputs = micro(acc[1], batch, index)
        return (jax.tree.map(_added, acc[0], g), s, acc[2].added(n)), outputs

    # In half precision a sum of gradients would lose what is added to it.
    (grads, state, total), rest = _folded(plan, batches, batch_at, one, (in_accumulators(grads), state, total))
    kept = jax.tree.map(lambda one, others: jnp.concatenate([one, others]), kept, rest)
    count: Any = plan.accum
    if plan.incomplete:
        full, rest = inputs[REAL]
        count = jnp.minimum(count, full + (rest > 0) - carry.position)
    if not total.weights:
        grads = jax.tree.map(lambda x: (x / count).astype(x.dtype), grads)
    return grads, state, total.over(count), kept


def _folded(
    plan: StepPlan,
    batches: Batches,
    batch_at: Callable[[Any], Mapping[str, jax.Array]],
    one: Callable[[Any, Mapping[str, jax.Array], Any], tuple[Any, PyTree]],
    carry: Any,
) -> tuple[Any, PyTree]:
    """`one(carry, batch, index) -> (carry, kept)` over the micro-batches after the first, the kept stacked."""
    if plan.scan:
        found = [batch_at(index) for index in range(1, plan.accum)] if one_by_one(batches) else []
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *found) if found else None

        def body(carry: Any, index: jax.Array) -> Any:
            batch = batch_at(index) if stacked is None else jax.tree.map(lambda x: x[index - 1], stacked)
            return one(carry, batch, index)

        return jax.lax.scan(body, carry, jnp.arange(1, plan.accum))
    rest = []
    for index in range(1, plan.accum):
        carry, kept = one(carry, batch_at(index), index)
        rest.append(kept)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rest)


def _totals(
    plan: StepPlan,
    device: Mapping[str, jax.Array],
    carry: TrainState,
    batches: Batches,
    inputs: Mapping[str, Any],
    key: jax.Array,
) -> Totals | None:
    """The denominators of all micro-batches together, before any gradient; None for a scalar loss.

    What they do not depend on is no part of the program: the forward, where the batch alone says them.
    """
    traces: dict[Any, LossTrace] = {}

    def trace_of(batch: Mapping[str, Any]) -> LossTrace:
        shapes = tuple((name, array.shape, array.dtype) for name, array in batch.items())
        if shapes not in traces:
            traces[shapes] = LossTrace.of(plan, carry.params, carry.state, batch, key, device)
        return traces[shapes]

    first = trace_of(jax.eval_shape(lambda: batch_of(batches, inputs, carry.position, 0)))
    if not first.terms:
        return None
    plan.names.forward_twice = first.of_model
    # What is gathered is gathered whole, so only what is needed is there to gather.
    if isinstance(batches, BatchWindow):
        batches = batches._replace(fields=_chosen(batches.fields, first.fields))
    elif not one_by_one(batches):
        inputs = {**inputs, "arrays": _chosen(inputs["arrays"], first.fields)}

    def batch_at(index: Any) -> Mapping[str, jax.Array]:
        return batch_of(batches, inputs, carry.position, index)

    def found(state: PyTree, batch: Mapping[str, jax.Array], index: Any) -> tuple[Totals, PyTree]:
        trace = trace_of(batch) if one_by_one(batches) else first
        under, after = trace.denominators(carry.params, state, batch, jax.random.fold_in(key, index), device)
        if plan.incomplete:
            under = jax.tree.map(lambda x: jnp.where(batch[VALID][0], x, 0), under)
        return under, after

    def one(acc: tuple[Totals, PyTree], batch: Mapping[str, jax.Array], index: Any) -> Any:
        under, state = found(acc[1], batch, index)
        return (jax.tree.map(jnp.add, acc[0], under), state), None

    (totals, _), _ = _folded(plan, batches, batch_at, one, found(carry.state, batch_at(0), 0))
    return totals


def _chosen(arrays: Mapping[str, jax.Array], names: Collection[str]) -> dict[str, jax.Array]:
    """Those of some names; any one of others says how many rows a batch has."""
    return {name: arrays[name] for name in arrays if name in names} or dict([next(iter(arrays.items()))])


def _gradient(
    plan: StepPlan,
    device: Mapping[str, jax.Array],
    params: PyTree,
    state: PyTree,
    batch: Mapping[str, jax.Array],
    key: jax.Array,
    row: Row,
    totals: Totals | None,
) -> tuple[PyTree, PyTree, StepNumbers, PyTree]:
    """One micro-batch: `(gradient, new layer state, numbers, outputs)`.

    Args:
        totals: the denominators of the loss terms over the whole step; None where this is all of it.
    """
    routing, view = plan.routing, compile_view(plan.experiment, device)
    traced_weights: set[str] = set()

    def objective(p: PyTree) -> Any:
        model = BoundModel(plan.model, train=True, key=key)
        outputs, new_state = forward(view, model, p, state, routing, batch)
        parts = split_loss(routing.call(view, "loss", outputs, batch=batch))
        traced_weights.update(parts.traced_weights)
        numbers = StepNumbers.of_loss(parts)
        # In the precision that the hook gave it.
        loss = (numbers if totals is None else numbers.divided_by(totals)).loss if parts.value is None else parts.value
        if routing.table.has("train_metrics") and not plan.outputs_to_host:
            returned = routing.call(view, "train_metrics", outputs, batch=batch)
            numbers = numbers.beside(*split_metrics(returned, {"loss", *numbers.means, *numbers.sums}))
        if plan.incomplete:
            there = batch[VALID][0]
            loss, numbers = jnp.where(there, loss, 0), numbers.where(there)
        return loss, (new_state, numbers, outputs if plan.outputs_to_host else None)

    gradient = jax.value_and_grad(objective, has_aux=True)
    (_, (new_state, numbers, outputs)), grads = gradient(params)
    if plan.rule is not None:
        assert plan.optimizer is not None
        perturbed = plan.optimizer.perturb(plan.rule, grads, params, row)
        _, grads = gradient(perturbed)
    check_same_tree("forward", "the layer state", state, new_state)
    if traced_weights and totals is None:
        LossTrace.of(plan, params, state, batch, key, device)  # which looks at the weights
    return grads, new_state, numbers, outputs


def _batch_size(batch: Mapping[str, jax.Array]) -> int:
    return next((array.shape[0] for array in batch.values()), -1)


def _added(total: jax.Array, new: jax.Array) -> jax.Array:
    return total + (new if new.dtype == total.dtype else new.astype(total.dtype))
