"""The micro-batches of a step together: their gradient, their numbers, and the layer state passed through them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.experiment import Experiment
from nitro_cli.optim import in_accumulators
from nitro_cli.programs.hook_returns import check_same_tree, scalars, split_loss
from nitro_cli.programs.models import BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.step_batches import Batches, batch_of, one_by_one
from nitro_cli.programs.step_plan import Row, StepPlan, TrainState, forward

__all__ = ["accumulate"]


def accumulate(
    plan: StepPlan,
    view: Experiment,
    carry: TrainState,
    batches: Batches,
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
            outputs = plan.layout.rows(outputs, _batch_size(batch))
        return grads, state, numbers, outputs

    grads, state, total, outputs = micro(carry.state, batch_of(batches, inputs, carry.position, 0), 0)
    kept = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs)
    if plan.accum == 1:
        return grads, state, total, kept
    # In half precision a sum of gradients would lose what is added to it.
    summed = in_accumulators(grads)
    if plan.scan:
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *batches[1:]) if one_by_one(batches) else None

        def body(acc: Any, index: jax.Array) -> Any:
            batch = (
                batch_of(batches, inputs, carry.position, index)
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
            batch = batch_of(batches, inputs, carry.position, index)
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


def _batch_size(batch: Mapping[str, jax.Array]) -> int:
    return next((array.shape[0] for array in batch.values()), -1)
