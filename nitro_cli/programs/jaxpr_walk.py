"""The one walk over a jaxpr: equation by equation, calls entered and short loops unrolled, values of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax.extend.core import Literal

__all__ = ["LONGEST", "JaxprWalk", "equations"]

V = TypeVar("V")

LONGEST = 512
"""Turns up to which a scan is unrolled."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = {"jit", "pjit", "checkpoint", "remat2", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}


class JaxprWalk(ABC, Generic[V]):
    """Interprets a jaxpr over values of a kind: arrays, names of tensors, whatever stands for an array.

    A subclass says what an operation does to values. Calls (jit, remat, custom derivatives) are walked through, scans
    of up to `LONGEST` turns turn by turn; other loops and branches are operations. Equations that no output depends on
    are left out.
    """

    @abstractmethod
    def constant(self, array: Any) -> V:
        """The value of a literal or of an array that the function closes over."""

    @abstractmethod
    def operation(self, equation: Any, inputs: list[V]) -> list[V]:
        """The outputs of an equation, which has `primitive`, `params`, and `invars` and `outvars` with avals."""

    @abstractmethod
    def row(self, stacked: V, index: int) -> V:
        """`stacked[index]`, what a turn of a scan takes of an input."""

    @abstractmethod
    def stack(self, rows: list[V]) -> V:
        """The rows that the turns of a scan gave, on a new first axis."""

    def is_operation(self, equation: Any) -> bool:
        """Whether a call or a scan is an operation of its own, not walked through."""
        return False

    def walk(self, closed: Any, inputs: Sequence[V]) -> list[V]:
        """The outputs of a jaxpr, closed or without constants, for `inputs`."""
        jaxpr = getattr(closed, "jaxpr", closed)
        values = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, const in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True):
            values[variable] = self.constant(const)

        def read(atom: Any) -> V:
            if isinstance(atom, Literal):
                return self.constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
            return values[atom]

        for equation in _needed(jaxpr):
            outputs = self._outputs(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _outputs(self, equation: Any, inputs: list[V]) -> list[V]:
        name, params = equation.primitive.name, equation.params
        if not self.is_operation(equation):
            if name in _CALLS:
                return self.walk(next(params[key] for key in _BODIES if key in params), inputs)
            if name == "scan" and isinstance(params["length"], int) and 0 < params["length"] <= LONGEST:
                return self._unrolled(params, inputs)
        return self.operation(equation, inputs)

    def _unrolled(self, params: Any, inputs: list[V]) -> list[V]:
        length, consts, carries = params["length"], params["num_consts"], params["num_carry"]
        fixed, carry, xs = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
        turns: list[list[V]] = [[] for _ in range(length)]
        for i in reversed(range(length)) if params["reverse"] else range(length):
            found = self.walk(params["jaxpr"], [*fixed, *carry, *(self.row(x, i) for x in xs)])
            carry, turns[i] = found[:carries], found[carries:]
        return [*carry, *(self.stack(list(column)) for column in zip(*turns, strict=True))]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of those inside of it, in order."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from equations(value)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


def _needed(jaxpr: Any) -> list[Any]:
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            wanted.update(atom for atom in equation.invars if not isinstance(atom, Literal))
            kept.append(equation)
    return kept[::-1]
