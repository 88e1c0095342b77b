"""How micro-batches are folded into one step: written out one after the other, or in a loop inside the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from nitro_cli.programs.jaxpr_walk import equations

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr  # at run time it would load Pallas

__all__ = ["Accumulation", "choose_accumulation"]

UNROLL_UP_TO = 8


@dataclass(frozen=True)
class Accumulation:
    """The decision, and why: `scan` folds in a loop inside the program."""

    scan: bool
    reason: str


def choose_accumulation(accum: int, backend: str, step: Any, args: tuple[Any, ...]) -> Accumulation:
    """Decide from the program and the backend, the same way every time.

    Writing micro-batches out lets the compiler see all of them but grows the program with their number; a loop keeps it
    small, but XLA on CPU runs a convolution inside a loop about ten times slower.

    Args:
        accum: micro-batches per step.
        backend: JAX's platform name.
        step: the step with a single micro-batch, a function of `args`, to look for convolutions in; only traced.
        args: its arguments.
    """
    if accum <= UNROLL_UP_TO:
        return Accumulation(False, "written out" if accum > 1 else "one micro-batch")
    if backend == "cpu" and has_convolution(jax.make_jaxpr(step)(*args)):
        return Accumulation(False, "written out: a convolution in a loop is slow on cpu")
    return Accumulation(True, "loop inside the program")


def has_convolution(jaxpr: ClosedJaxpr) -> bool:
    """Whether a convolution is anywhere in the program."""
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations(jaxpr))
