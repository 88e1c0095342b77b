"""Where a step finds its micro-batches: as they came, in a window of them, or in arrays that stay on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from nitro_cli.experiment import VALID

__all__ = ["REAL", "BatchWindow", "Batches", "batch_of", "one_by_one"]

REAL = "real"
"""Name of an input of the step: how much of an epoch is no padding."""


class BatchWindow(NamedTuple):
    """Micro-batches of an epoch that lie one behind the other, each field in one array.

    Attributes:
        fields: `[capacity, batch size, ...]` by field; what is not filled is never read.
        first: which micro-batch of the epoch the first of them is, int32[].
    """

    fields: Mapping[str, Any]
    first: Any


Batches = Sequence[Mapping[str, jax.Array]] | BatchWindow
"""Of a step: its micro-batches one by one, a window that they are in, or none, with resident data."""


def one_by_one(batches: Batches) -> TypeGuard[Sequence[Mapping[str, jax.Array]]]:
    """Whether the micro-batches of a step are there as they came."""
    return bool(batches) and not isinstance(batches, BatchWindow)


def batch_of(batches: Batches, inputs: Mapping[str, Any], position: jax.Array, index: Any) -> Mapping[str, jax.Array]:
    """One micro-batch of a step.

    Args:
        batches: of the step.
        inputs: of the step; resident data is in them, and where a hook wants to know them the numbers of an epoch's
            batches without padding and of the rows of the next, int32[2], as `REAL`.
        position: micro-batches taken in this epoch before the step, int32[].
        index: which micro-batch of the step.
    """
    found = _found(batches, inputs, position, index)
    if REAL not in inputs:
        return found
    size = next((len(rows) for rows in found.values()), 0)
    full, rest = inputs[REAL]
    at = position + index
    rows = jnp.where(at < full, size, jnp.where(at == full, rest, 0))
    return {**found, VALID: jnp.arange(size) < rows}


def _found(batches: Batches, inputs: Mapping[str, Any], position: jax.Array, index: Any) -> Mapping[str, jax.Array]:
    if one_by_one(batches):
        return batches[index]
    # Without the barriers XLA computes indices and batch anew for every use of the batch.
    if isinstance(batches, BatchWindow):
        at = position + index - batches.first
        found = {name: jax.lax.dynamic_index_in_dim(rows, at, keepdims=False) for name, rows in batches.fields.items()}
        return jax.lax.optimization_barrier(found)
    rows = jax.lax.dynamic_index_in_dim(inputs["order"], position + index, axis=0, keepdims=False)
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
