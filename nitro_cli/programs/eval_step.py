"""The evaluation programs: the forward, device metrics, and the evaluation loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.experiment import VALID, Experiment, Routing, Term, compile_view
from nitro_cli.programs.array_layout import ArrayLayout
from nitro_cli.programs.hook_returns import batch_outputs, split_loss
from nitro_cli.programs.models import AdaptedModel, BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.packed_sums import PackedSums
from nitro_cli.programs.step_plan import forward

__all__ = ["EvalPlan", "build_eval_loss", "build_forward", "build_metrics", "build_packed", "build_sums"]


@dataclass(frozen=True)
class EvalPlan:
    """What the evaluation programs are made from: experiment, routing, model; and the layout on several devices."""

    experiment: Experiment
    routing: Routing
    model: AdaptedModel
    layout: ArrayLayout | None = None


def build_forward(plan: EvalPlan) -> Any:
    """`(params, state, batch, device) -> outputs`, in evaluation mode; the new state is discarded.

    Tracing it raises HookError for an output whose first axis is not the batch: outputs are padded and sliced along it.
    """

    def eval_forward(
        params: PyTree, state: PyTree, batch: Mapping[str, jax.Array], device: Mapping[str, jax.Array]
    ) -> PyTree:
        view = compile_view(plan.experiment, device)
        batch = _told(plan, "forward", batch, _rows(batch))
        model = BoundModel(plan.model, train=False, key=None)
        outputs, _ = forward(view, model, params, state, plan.routing, batch)
        outputs = batch_outputs(outputs, _rows(batch))
        return outputs if plan.layout is None else plan.layout.rows(outputs, _rows(batch))

    return eval_forward


def build_eval_loss(plan: EvalPlan, real: int | None) -> Any:
    """`(outputs, batch, device) -> {"loss": ..., "loss/<term>": ...}` over the first `real` samples (all when None).

    Each is a `Term`. A loss that is made of terms has no entry of its own; beside one that has all are plain numbers.
    """

    def eval_loss(outputs: PyTree, batch: Mapping[str, jax.Array], device: Mapping[str, jax.Array]) -> dict[str, Term]:
        view = compile_view(plan.experiment, device)
        outputs, batch = _cut((outputs, dict(batch)), real)
        batch = _told(plan, "loss", batch, _rows_of(outputs))
        parts = split_loss(plan.routing.call(view, "loss", outputs, batch=batch))
        values = {} if parts.value is None else {"loss": Term(parts.value)}
        values |= {f"loss/{name}": jax.tree.map(jnp.asarray, term) for name, term in parts.terms.items()}
        return values if plan.layout is None else plan.layout.same(values)

    return eval_loss


def build_metrics(plan: EvalPlan, real: int | None) -> Any:
    """`(outputs, batch, device) -> mapping of combinable values` over the first `real` samples (all when None)."""

    def metrics(outputs: PyTree, batch: Mapping[str, jax.Array], device: Mapping[str, jax.Array]) -> Any:
        view = compile_view(plan.experiment, device)
        outputs, batch = _cut((outputs, dict(batch)), real)
        batch = _told(plan, "metrics", batch, _rows_of(outputs))
        values = plan.routing.call(view, "metrics", outputs, batch=batch)
        return values if plan.layout is None else plan.layout.same(jax.tree.map(jnp.asarray, values))

    return metrics


def build_sums(plan: EvalPlan, hooks: Collection[str]) -> Any:
    """`(params, state, batch, device) -> {"metrics": ..., "loss": ...}`: what a pass adds up of a batch.

    The forward and all in one program. `hooks` says which of the two there are; each declares `valid`, so that padding
    is left out.
    """
    made = {"metrics": build_metrics, "loss": build_eval_loss}
    given = {name: made[name](plan, None) for name in made if name in hooks}
    evaluated = build_forward(plan)

    def eval_sums(
        params: PyTree, state: PyTree, batch: Mapping[str, jax.Array], device: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        outputs = evaluated(params, state, plan.routing.taken("forward", batch), device)
        return {name: of(outputs, plan.routing.taken(name, batch), device) for name, of in given.items()}

    return eval_sums


def build_packed(sums: Any, packed: PackedSums) -> Any:
    """The same program, its values in the vectors of `packed`."""

    def eval_sums(*args: Any) -> dict[str, jax.Array]:
        return packed.pack(sums(*args))

    return eval_sums


def _cut(tree: PyTree, real: int | None) -> PyTree:
    return tree if real is None else jax.tree.map(lambda leaf: leaf[:real], tree)


def _told(plan: EvalPlan, hook: str, batch: Mapping[str, jax.Array], rows: int) -> Mapping[str, jax.Array]:
    """The batch as a hook takes it that wants to know which rows are no padding: all, where nobody says."""
    if hook not in plan.routing.padded or VALID in batch:
        return batch
    return {**batch, VALID: jnp.ones(max(rows, 0), bool)}


def _rows_of(outputs: PyTree) -> int:
    return next((leaf.shape[0] for leaf in jax.tree.leaves(outputs)), -1)


def _rows(batch: Mapping[str, jax.Array]) -> int:
    return next((array.shape[0] for array in batch.values()), -1)
