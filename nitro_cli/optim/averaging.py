"""The exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.optim.accumulators import accumulator_dtype

__all__ = ["ema_init", "ema_update"]


def ema_init(params: Any) -> Any:
    """The average at the start: a copy of `params`, floats narrower than float32 widened to it.

    In bfloat16 the average of a weight that moves by less than a 256th of itself would never move.
    """
    return jax.tree.map(lambda w: jnp.array(w, accumulator_dtype(w.dtype), copy=True), params)


def ema_update(ema: Any, params: Any, step: Any, beta: Any, warmup: Any, every: Any) -> Any:
    """`b * ema + (1 - b) * w` after every `every`-th step, `b = min(beta, (1 + t) / (10 + t))` under warmup.

    The warmup is the one of TensorFlow's `ExponentialMovingAverage(num_updates)`. Everything but the trees' structure
    may be traced. Leaves that are not floating follow the weights.

    Args:
        ema: of `ema_init` or of the step before.
        params: the weights.
        step: t, the optimizer steps done, this one counted; int32[].
        beta: f32[].
        warmup: f32[] or bool[], whether the warmup applies.
        every: f32[] or int32[], steps between updates.

    Returns:
        The new average, each leaf in its own dtype.
    """
    count = jnp.asarray(step)
    t = count.astype(jnp.float32)
    b = jnp.asarray(beta, jnp.float32)
    b = jnp.where(jnp.asarray(warmup) != 0, jnp.minimum(b, (1.0 + t) / (10.0 + t)), b)
    due = count % jnp.round(jnp.asarray(every, jnp.float32)).astype(count.dtype) == 0

    def leaf(average: jax.Array, weight: jax.Array) -> jax.Array:
        if not jnp.issubdtype(average.dtype, jnp.inexact):
            return jnp.where(due, weight, average)
        new = (b * average + (1.0 - b) * weight.astype(average.dtype)).astype(average.dtype)
        return jnp.where(due, new, average)

    return jax.tree.map(leaf, ema, params)
