"""Clipping a gradient by its global norm, with a traced threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.optim.accumulators import in_accumulators

__all__ = ["clip_by_global_norm", "clip_factor"]


def clip_by_global_norm(grads: Mapping[str, jax.Array], threshold: Any) -> tuple[dict[str, jax.Array], jax.Array]:
    """`optax.clip_by_global_norm` with a threshold that may be traced, 0 being off.

    Reference: Pascanu et al. 2012, arXiv:1211.5063.

    Args:
        grads: by path text.
        threshold: f32[], 0 or less leaves the gradient as it is.

    Returns:
        The clipped gradient, and the global norm before clipping (f32[], computed in at least float32).
    """
    factor, norm = clip_factor(grads, threshold)
    return {text: g * factor.astype(g.dtype) for text, g in grads.items()}, norm


def clip_factor(grads: Mapping[str, jax.Array], threshold: Any) -> tuple[jax.Array, jax.Array]:
    """What `clip_by_global_norm` multiplies the gradient by, f32[], and the global norm before."""
    widened = in_accumulators(list(grads.values()))
    norm = jnp.sqrt(sum((_square(g) for g in widened), jnp.float32(0.0)))
    limit = jnp.asarray(threshold, norm.dtype)
    keep = (limit <= 0) | (norm < limit)
    # 0 / 0 in the branch not taken would stop a run under jax_debug_nans
    divisor = jnp.where(keep, jnp.ones_like(norm), norm)
    return jnp.where(keep, jnp.ones_like(norm), limit / divisor), norm


def _square(g: jax.Array) -> jax.Array:
    """The squared norm of one leaf: `jnp.vdot(g, g).real` in fewer operations, as there is one of them per leaf."""
    flat = jax.lax.reshape(g, (g.size,))
    return jax.lax.dot(flat.conj(), flat).real if jnp.iscomplexobj(g) else jax.lax.dot(flat, flat)
