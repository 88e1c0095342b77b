"""Finding where a step that diverged went wrong: replay it, operation by operation, on its own batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from nitro_cli.experiment import compile_view
from nitro_cli.programs.hook_returns import split_loss
from nitro_cli.programs.jaxpr_walk import JaxprWalk
from nitro_cli.programs.models import BoundModel
from nitro_cli.programs.readback import StepNumbers
from nitro_cli.programs.step_batches import Batches, batch_of
from nitro_cli.programs.step_plan import StepPlan, TrainState, device_values, forward
from nitro_cli.text import path_text

__all__ = ["first_nonfinite", "locate_divergence"]


def locate_divergence(plan: StepPlan, carry: TrainState, batches: Batches, inputs: Mapping[str, Any]) -> str:
    """Say where the first non-finite value of a step comes from.

    Args:
        plan: of the training program, in automatic mode.
        carry: the state before the step, as the program left it.
        batches, inputs: what the step was called with.

    Returns:
        One sentence: a parameter, a batch field, an operation of the forward with its line, a loss term, or a gradient.
    """
    found = _in_tree("the parameter", carry.params) or _in_tree("the layer state", carry.state)
    if found is not None:
        return found
    device = device_values(plan.hyper, inputs["device"], carry.step)
    found = _in_tree("the Device field", device)
    if found is not None:
        return found
    state = carry.state
    for index in range(plan.accum):
        batch = batch_of(batches, inputs, carry.position, index)
        found, state = _micro_batch(plan, carry, state, batch, device, inputs["key"], index)
        if found is not None:
            return found + (f" (micro-batch {index + 1} of {plan.accum})" if plan.accum > 1 else "")
    return "nothing: replayed operation by operation the step is finite, so the compiled program rounds otherwise"


def _micro_batch(
    plan: StepPlan, carry: TrainState, state: Any, batch: Mapping[str, jax.Array], device: Any, key: Any, index: int
) -> tuple[str | None, Any]:
    found = _in_tree("the batch field", dict(batch))
    if found is not None:
        return found, state
    folded = jax.random.fold_in(jax.random.fold_in(key, carry.step), index)

    def objective(params: Any) -> Any:
        view = compile_view(plan.experiment, device)
        model = BoundModel(plan.model, train=True, key=folded)
        outputs, new_state = forward(view, model, params, state, plan.routing, batch)
        parts = split_loss(plan.routing.call(view, "loss", outputs, batch=batch))
        loss = StepNumbers.of_loss(parts).loss if parts.value is None else parts.value
        return loss, (new_state, parts.terms, outputs)

    loss, (new_state, terms, outputs) = objective(carry.params)
    if not bool(jnp.isfinite(loss)):
        where = first_nonfinite(lambda params: objective(params)[0], carry.params)
        output = _in_tree("the output", outputs)
        term = _in_tree("the loss term", terms)
        named = "; ".join(text for text in (output, term) if text)
        return f"{where or 'the loss'}{'; then ' + named if named else ''}", new_state
    gradient = jax.grad(lambda params: objective(params)[0])
    grads = gradient(carry.params)
    found = _in_tree("the gradient of", grads)
    if found is not None:
        where = first_nonfinite(gradient, carry.params)
        return f"{found}{', from ' + where if where else ''}", new_state
    return None, new_state


def first_nonfinite(function: Any, *args: Any) -> str | None:
    """The first operation of `function(*args)` whose result is not finite though what went in was; None without one.

    When the end result is NaN only NaNs are looked for: an infinity may be meant (a mask), a NaN never is.
    """
    closed = jax.make_jaxpr(function)(*args)
    results = jax.tree.leaves(function(*args))
    looks_for = jnp.isnan if any(bool(jnp.any(jnp.isnan(r))) for r in results if _is_float(r)) else _not_finite
    try:
        _Replay(looks_for, closed.jaxpr.debug_info).walk(closed, jax.tree.leaves(args))
    except _Found as found:
        return found.text
    return None


class _Found(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Replay(JaxprWalk[Any]):
    """Runs a jaxpr operation by operation on arrays, until a result is `bad` though nothing that went in was."""

    def __init__(self, bad: Any, debug_info: Any) -> None:
        self.bad, self.debug_info = bad, debug_info

    def constant(self, array: Any) -> Any:
        return array

    def operation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        given = {a: x for a, x in zip(equation.invars, inputs, strict=True) if not isinstance(a, core.Literal)}
        kept = [v for v in equation.outvars if not isinstance(v, core.DropVar)]
        alone = core.Jaxpr([], [*given], kept, [equation], effects=equation.effects, debug_info=self.debug_info)
        found = iter(jax.core.eval_jaxpr(alone, [], *given.values()))
        results = [None if isinstance(v, core.DropVar) else next(found) for v in equation.outvars]
        if _any(results, self.bad) and not _any(inputs, self.bad):
            raise _Found(_described(equation))
        return results

    def row(self, stacked: Any, index: int) -> Any:
        return stacked[index]

    def stack(self, rows: list[Any]) -> Any:
        return jnp.stack(rows)


def _described(equation: Any) -> str:
    from jax._src import source_info_util

    line = source_info_util.summarize(equation.source_info)
    stack = str(equation.source_info.name_stack)
    inside = f" in {stack}" if stack else ""
    return f"the operation {equation.primitive.name}{inside} at {line}"


def _any(values: Sequence[Any], bad: Any) -> bool:
    return any(bool(jnp.any(bad(value))) for value in values if _is_float(value))


def _is_float(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)


def _not_finite(value: Any) -> Any:
    return ~jnp.isfinite(value)


def _in_tree(what: str, tree: Any) -> str | None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if _is_float(leaf) and not bool(jnp.all(jnp.isfinite(leaf))):
            array = np.asarray(leaf)
            count = int(np.sum(~np.isfinite(array)))
            name = path_text(path)
            return f"{what} {name}".rstrip() + f" ({count} of {array.size} values)"
    return None
