"""Several optimizer steps in one dispatch, over resident data or over a window of batches; evaluation batches too.

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
from nitro_cli.programs.packed_sums import PackedSums
from nitro_cli.programs.step_batches import batch_of
from nitro_cli.programs.tracing import fresh_trace
from nitro_cli.programs.train_step import in_place

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr  # at run time it would load Pallas

__all__ = ["MOST_STEPS", "StepTrace", "build_repeated_step", "build_repeated_sums", "loop_obstacle", "trace_step"]

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
        found = loop_obstacle(self.jaxpr, backend)
        if found is not None:
            return found
        leaves = self.out_tree.num_leaves
        if leaves > MOST_LEAVES:
            return f"a loop over a state of {leaves:,} arrays compiles for long"
        return None

    def __call__(self, *args: Any) -> Any:
        """The step itself, without tracing the experiment's hooks again."""
        return jax.tree.unflatten(
            self.out_tree, jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *jax.tree.leaves(args))
        )


def loop_obstacle(jaxpr: ClosedJaxpr, backend: str) -> str | None:
    """Why a function is not called in a loop inside a program on `backend`; None where it may be."""
    if jaxpr.effects:
        return "the step calls back into Python"
    if backend == "cpu" and has_convolution(jaxpr):
        return "a convolution in a loop is slow on cpu"
    return None


def build_repeated_sums(sums: Any, packed: PackedSums) -> Any:
    """The function to compile: `(params, state, first, count, inputs, device) -> vectors`.

    Args:
        sums: what `build_sums` gave.
        packed: how its values lie in vectors.

    The function takes `count` batches, int32[], at most `MOST_STEPS`, from batch `first` on. `inputs` holds what a step
    over resident data has: `arrays`, `order` and `REAL`. Each vector is `[MOST_STEPS, numbers]`, a row a batch; the
    other rows are zero.
    """

    def eval_batches(params: Any, state: Any, first: jax.Array, count: jax.Array, inputs: Any, device: Any) -> Any:
        def one(index: jax.Array, rows: Any) -> Any:
            batch = batch_of((), inputs, first, index)
            found = packed.pack(sums(params, state, batch, device))
            return {name: jax.lax.dynamic_update_index_in_dim(rows[name], found[name], index, 0) for name in rows}

        start = {name: jnp.zeros((MOST_STEPS, size), name) for name, size in packed.sizes.items()}
        return jax.lax.fori_loop(0, count, one, start)

    return eval_batches


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
