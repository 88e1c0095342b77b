"""Clipping a gradient by its global norm, with a traced threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.optim.norms import global_norm

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
    norm = global_norm(grads.values())
    limit = jnp.asarray(threshold, norm.dtype)
    keep = (limit <= 0) | (norm < limit)
    # 0 / 0 in the branch not taken would stop a run under jax_debug_nans
    divisor = jnp.where(keep, jnp.ones_like(norm), norm)
    return jnp.where(keep, jnp.ones_like(norm), limit / divisor), norm
