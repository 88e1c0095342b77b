"""Numbers over all leaves of a tree: their norm, and whether all are finite."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.optim.accumulators import in_accumulators

__all__ = ["all_finite", "global_norm"]

SMALL = 4096
"""Elements from which a leaf is read where it lies: copying it costs more than one operation. Smaller ones are never
split over devices either."""

TOGETHER = 64
"""Small leaves that are read as one array."""


def global_norm(leaves: Iterable[jax.Array]) -> jax.Array:
    """The Euclidean norm of all leaves together, f32[], of float64 leaves f64[]; narrower floats summed in float32.

    Args:
        leaves: arrays of any shapes, real or complex. Traceable.
    """
    squares = (_square(flat) for flat in in_accumulators(_end_to_end(leaves)))
    return jnp.sqrt(sum(squares, jnp.float32(0.0)))


def all_finite(leaves: Iterable[jax.Array]) -> jax.Array:
    """Whether no leaf holds an infinity or NaN, bool[]; leaves that are not floating do not count. Traceable."""
    floats = _end_to_end(leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))
    if not floats:
        return jnp.asarray(True)
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(flat)) for flat in floats]))


def _end_to_end(leaves: Iterable[jax.Array]) -> list[jax.Array]:
    """The leaves as vectors, many small ones in one: an operation for each leaf would double what XLA compiles for."""
    found: list[jax.Array] = []
    small: dict[np.dtype, list[jax.Array]] = {}
    for leaf in leaves:
        (small.setdefault(leaf.dtype, []) if leaf.size < SMALL else found).append(jax.lax.reshape(leaf, (leaf.size,)))
    for flats in small.values():
        found += [jax.lax.concatenate(flats[at : at + TOGETHER], 0) for at in range(0, len(flats), TOGETHER)]
    return found


def _square(flat: jax.Array) -> jax.Array:
    """The squared norm of a vector."""
    return jax.lax.dot(flat.conj(), flat).real if jnp.iscomplexobj(flat) else jax.lax.dot(flat, flat)
