"""Totals of a batch that lose nothing: traced in JAX, or in NumPy where the arrays are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.errors import MetricError

__all__ = ["class_counts", "library_of", "precise_total", "square_total"]


def library_of(array: Any) -> Any:
    """The module that computes with an array: NumPy, or `jax.numpy` for what is traced or on a device."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import jax.numpy as jnp

    return jnp


def precise_total(x: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """The sum of floating-point numbers to twice their precision, so that it does not depend on the batch's size.

    Args:
        x: any shape. Of JAX arrays pairs of a number and its rounding error are added, by Knuth's two-sum (The Art of
            Computer Programming 2, 4.2.2); NumPy's in float64.
        axis: the axis or axes to sum over; None is all.

    Returns:
        The sum's shape with a last axis of 2, whose entries add up to it in float64.
    """
    if library_of(x) is np:
        total = np.asarray(np.sum(x, axis, dtype=np.float64))
        return np.stack([total, np.zeros_like(total)], axis=-1)
    import jax
    import jax.numpy as jnp

    # A number to look at, also where a loss beside it is differentiated.
    x = jax.lax.stop_gradient(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
    zero = jnp.zeros((), x.dtype)

    def add(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        (high, low), (other, more) = a, b
        total = high + other
        part = total - high
        low = low + more + ((high - (total - part)) + (other - part))
        whole = total + low
        return whole, low - (whole - total)

    dimensions = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return jnp.stack(jax.lax.reduce((x, jnp.zeros_like(x)), (zero, zero), add, dimensions), axis=-1)


def square_total(x: Any, axis: int | None = None) -> Any:
    """The sum of squares, each exact: as `precise_total`. A variance is what little remains of it."""
    if library_of(x) is np:
        return precise_total(np.asarray(x, np.float64) ** 2, axis)
    import jax
    import jax.numpy as jnp

    x = jax.lax.stop_gradient(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
    bits = jnp.finfo(x.dtype).bits
    whole = jax.lax.bitcast_convert_type(x, jnp.uint32 if bits == 32 else jnp.uint64)
    keep = np.array((1 << bits) - (1 << (12 if bits == 32 else 27)), whole.dtype)
    # The upper half of the digits and the rest: each product of two halves is exact.
    upper = jax.lax.bitcast_convert_type(whole & keep, x.dtype)
    lower = x - upper
    parts = jnp.stack([upper * upper, 2 * upper * lower, lower * lower])
    return precise_total(parts, None if axis is None else (0, axis + 1))


def class_counts(index: Any, counted: Any, classes: int | None) -> Any:
    """How many entries that count have each class.

    Args:
        index: i32[M], 0 to classes - 1.
        counted: bool[M].
        classes: how many there are; NumPy can do without.

    Returns:
        [classes], whole numbers.
    """
    if library_of(index) is np:
        return np.bincount(index[counted], minlength=classes or 0).astype(np.int64)
    if classes is None:
        raise MetricError(
            "the number of classes is not known",
            why="a count by class has one entry for each",
            fix="give the metric its number of classes: classes=...",
        )
    import jax.numpy as jnp

    return jnp.zeros(classes, jnp.int32).at[index].add(counted.astype(jnp.int32))
