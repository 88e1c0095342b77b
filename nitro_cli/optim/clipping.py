"""Clipping a gradient by its global norm, with a traced threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.optim.accumulators import in_accumulators

__all__ = ["clip_factor"]


def clip_factor(grads: Mapping[str, jax.Array], threshold: Any) -> tuple[jax.Array, jax.Array]:
    """What `optax.clip_by_global_norm` would multiply a gradient by.

    Reference: Pascanu et al. 2012, arXiv:1211.5063.

    Args:
        grads: by path text.
        threshold: f32[], may be traced; 0 or less leaves the gradient as it is.

    Returns:
        The factor and the global norm before clipping, both f32[] or of the gradients' wider precision.
    """
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
