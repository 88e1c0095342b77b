"""Several optimizer steps in one dispatch, over resident data or over a window of batches.

Each call of a compiled program costs the host as much as a small step costs the device. Where the host has nothing to
hand over between two steps, one program takes as many as it is told: a loop whose count is an argument. The same
program serves every count, so how steps were grouped changes no bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr

from nitro_cli.programs.accumulation import has_convolution
from nitro_cli.programs.array_layout import ArrayLayout
from nitro_cli.programs.tracing import fresh_trace
from nitro_cli.programs.train_step import in_place

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr  # at run time it would load Pallas

__all__ = ["MOST_STEPS", "StepTrace", "build_repeated_step", "trace_step"]

MOST_STEPS = 32
"""Rows of the readback of one call: at 32 the cost of a call is a few microseconds a step."""

MOST_LEAVES = 1000
"""Arrays that a loop carries: over 3,000 it compiles for 1.4 times as long, and such a step is not a small one."""


@dataclass(frozen=True)
class StepTrace:
    """A train step traced once, for the decision and for the program.

    Attributes:
        jaxpr: the step as operations.
        out_tree: structure of `(TrainState, readback, outputs)`.
        numbers: length of the readback.
    """

    jaxpr: ClosedJaxpr
    out_tree: Any
    numbers: int

    def obstacle(self, backend: str) -> str | None:
        """Why steps of this program are dispatched one by one on `backend`; None where they need not be."""
        if self.jaxpr.effects:
            return "the step calls back into Python"
        if backend == "cpu" and has_convolution(self.jaxpr):
            return "a convolution in a loop is slow on cpu"
        leaves = self.out_tree.num_leaves
        if leaves > MOST_LEAVES:
            return f"a loop over a state of {leaves:,} arrays compiles for long"
        return None

    def __call__(self, *args: Any) -> Any:
        """The step itself, without tracing the experiment's hooks again."""
        return jax.tree.unflatten(
            self.out_tree, jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *jax.tree.leaves(args))
        )


def trace_step(step: Any, args: tuple[Any, ...]) -> StepTrace:
    """Trace what `build_train_step` gave for its arguments `(TrainState, batches, inputs)`."""

    # A new function object, since JAX keeps traces by it.
    def traced(*args: Any) -> Any:
        return step(*args)

    with fresh_trace():
        jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(*args)
    # A key that the model does not use costs more to lower than the rest of a small step.
    used, _ = dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars), instantiate=True)
    return StepTrace(jaxpr.replace(jaxpr=used), jax.tree.structure(shapes), shapes[1].shape[0])


def build_repeated_step(step: StepTrace, layout: ArrayLayout | None = None) -> Any:
    """The function to compile: `(TrainState, count, batches, inputs) -> (TrainState, readbacks)`.

    Args:
        step: a step over resident data, whose `batches` are none, or over a window.
        layout: how arrays lie on several devices; None on one.

    The function takes `count` steps, int32[], at most `MOST_STEPS`, and fewer where one of them sets `stopped`.
    `readbacks` is f32[MOST_STEPS, numbers], a row a step; rows of steps that were not taken are zero.
    """

    def train_steps(carry: Any, count: jax.Array, batches: Any, inputs: Any) -> Any:
        def go_on(loop: Any) -> jax.Array:
            done, carry, _ = loop
            return (done < count) & ~carry.stopped

        def one(loop: Any) -> Any:
            done, carry, rows = loop
            carry, readback, _ = step(carry, batches, inputs)
            return done + 1, carry, jax.lax.dynamic_update_index_in_dim(rows, readback, done, 0)

        start = jnp.zeros((), jnp.int32), carry, jnp.zeros((MOST_STEPS, step.numbers), jnp.float32)
        _, carry, rows = jax.lax.while_loop(go_on, one, start)
        return (carry, rows) if layout is None else (in_place(carry, layout), layout.same(rows))

    return train_steps
