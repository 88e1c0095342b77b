"""What the denominators and weights of loss terms depend on, and the denominators without the forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from nitro_cli.errors import HookError
from nitro_cli.experiment import compile_view
from nitro_cli.programs.hook_returns import split_loss
from nitro_cli.programs.models import BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.readback import StepNumbers
from nitro_cli.programs.step_plan import StepPlan, forward

__all__ = ["LossTrace"]

_ARGUMENTS = ("the parameters", "the layer state", "the batch", "the random key")
"""What a weight may not depend on; the Device fields come after them."""


@dataclass(frozen=True)
class LossTrace:
    """The denominators of a micro-batch as a program of their own.

    Attributes:
        terms: the terms that the loss is made of; empty for a scalar loss.
        fields: the batch fields that the denominators are computed from.
        of_model: the terms whose denominator depends on parameters or layer state: the forward is part of `jaxpr`.
        jaxpr: what they are computed by, of the inputs that it uses; the layer state after it where there is any
            `of_model`.
    """

    terms: tuple[str, ...]
    fields: tuple[str, ...]
    of_model: tuple[str, ...]
    jaxpr: ClosedJaxpr
    _needed: Any
    _out: Any

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        params: PyTree,
        state: PyTree,
        batch: Mapping[str, Any],
        key: jax.Array,
        device: Mapping[str, jax.Array],
    ) -> LossTrace:
        """Trace the loss of a micro-batch and look at what its denominators and weights come from.

        Args:
            plan: of the step.
            params, state, batch, key, device: what it is called with, or what has their shapes.

        Raises:
            HookError: a weight depends on more than Device fields.
        """
        terms: list[str] = []

        def returned(params: PyTree, state: PyTree, batch: Any, key: jax.Array, device: Any) -> Any:
            view = compile_view(plan.experiment, device)
            model = BoundModel(plan.model, train=True, key=key)
            outputs, state = forward(view, model, params, state, plan.routing, batch)
            parts = split_loss(plan.routing.call(view, "loss", outputs, batch=batch))
            if parts.value is not None:
                return {}, {}, state
            numbers = StepNumbers.of_loss(parts)
            terms.extend(sorted(numbers.weights))
            under = {name: pair[1] for name, pair in numbers.sums.items() if pair[1] is not None}
            return under, numbers.weights, state

        args = (params, state, dict(batch), key, dict(device))
        closed, shapes = jax.make_jaxpr(returned, return_shape=True)(*args)
        under, weights, state_out = shapes

        def used(wanted: Any) -> tuple[Any, list[bool]]:
            return dce_jaxpr(closed.jaxpr, jax.tree.leaves(wanted))

        def mask(dens: Any = False, weight: Any = False, state: bool = False) -> Any:
            return (
                {name: name == dens or dens is True for name in under},
                {name: name == weight for name in weights},
                jax.tree.map(lambda _: state, state_out),
            )

        for name in weights:
            _check_weight(name.removeprefix("loss/"), _by_argument(used(mask(weight=name))[1], args))
        of_model = tuple(name for name in under if any(_by_argument(used(mask(dens=name))[1], args)[:2]))
        jaxpr, kept = used(mask(dens=True, state=bool(of_model)))
        needed: Any = jax.tree.unflatten(jax.tree.structure(args), kept)
        out = jax.tree.structure((under, state_out if of_model else None))
        fields = tuple(name for name, is_used in needed[2].items() if is_used)
        return cls(tuple(terms), fields, of_model, closed.replace(jaxpr=jaxpr), needed, out)

    def denominators(
        self, params: PyTree, state: PyTree, batch: Mapping[str, Any], key: jax.Array, device: Mapping[str, jax.Array]
    ) -> tuple[dict[str, jax.Array], PyTree]:
        """The denominators of a micro-batch by term, and the layer state after it where one is `of_model`.

        Args:
            params, state, key, device: as traced.
            batch: has at least the `fields`.
        """
        args = (params, state, {name: batch[name] for name in self.fields}, key, dict(device))
        taken = (*self._needed[:2], dict.fromkeys(self.fields, True), *self._needed[3:])
        leaves = zip(jax.tree.leaves(args), jax.tree.leaves(taken), strict=True)
        found = jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *(leaf for leaf, used in leaves if used))
        under, after = jax.tree.unflatten(self._out, found)
        return under, after if self.of_model else state


def _by_argument(used: list[bool], args: tuple[Any, ...]) -> list[bool]:
    """Whether anything of each argument is used."""
    found, at = [], 0
    for arg in args:
        count = len(jax.tree.leaves(arg))
        found.append(any(used[at : at + count]))
        at += count
    return found


def _check_weight(name: str, used: list[bool]) -> None:
    wrong = [what for what, is_used in zip(_ARGUMENTS, used, strict=False) if is_used]
    if wrong:
        raise HookError(
            f"the weight of term {name!r} of `loss` depends on {' and '.join(wrong)}",
            why="a weight is one factor for all micro-batches, so it may depend on Device fields alone",
            fix="multiply the numerator by it in `loss`, or make it a Device field",
        )
