"""Attention over heads, rotary positions, and where the keys and values of earlier tokens are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.networks.layers import dropped

__all__ = [
    "attend",
    "attend_cached",
    "causal_mask",
    "in_front",
    "put_in",
    "rotary_angles",
    "rotated",
    "with_open_keys",
]

_MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
"""What a score counts as where attention is not allowed: finite, so that a row without any key is no NaN."""


def rotary_angles(position: Any, width: int, base: float) -> tuple[Any, Any]:
    """Cosine and sine of the angles `t * base^(-2k/width)` (Su et al., arXiv:2104.09864).

    Args:
        position: int32[B, T], t of each token.
        width: of a head, even.
        base: of the wavelengths.

    Returns:
        Two f32[B, T, 1, width / 2], alike for all heads.
    """
    rates = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = position.astype(jnp.float32)[..., None, None] * rates
    return jnp.cos(angles), jnp.sin(angles)


def rotated(x: Any, angles: tuple[Any, Any]) -> Any:
    """Queries or keys, [B, T, heads, width], whose pairs (2k, 2k + 1) are turned by the angles of their positions."""
    cosine, sine = angles
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def causal_mask(length: int, segment: Any = None, opening: int = 0) -> Any:
    """Which keys a query sees: those up to its own, of its own segment.

    Args:
        length: T, the tokens of a row.
        segment: int32[B, T], which segment each token belongs to; None is one.
        opening: how many rows before the tokens belong to every segment.

    Returns:
        bool[B or 1, 1, opening + T, opening + T].
    """
    mask = jnp.tril(jnp.ones((opening + length, opening + length), bool))[None]
    if segment is not None:
        same = segment[:, :, None] == segment[:, None, :]
        mask = mask & jnp.pad(same, ((0, 0), (opening, 0), (opening, 0)), constant_values=True)
    return mask[:, None]


def with_open_keys(mask: Any, count: int) -> Any:
    """A mask [B, 1, T, S] with `count` keys in front that every query sees."""
    return jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (count, 0)), constant_values=True)


def in_front(rows: Any, held: Any, axis: int) -> Any:
    """Keys or values with further ones before them.

    Args:
        rows: [n, kv_heads, d], for every sequence.
        held: [B, S, kv_heads, d], or [B, kv_heads, S, d].
        axis: which of the axes 1 and 2 is S.
    """
    turned = jnp.moveaxis(rows.astype(held.dtype), 0, axis - 1)
    return jnp.concatenate([jnp.broadcast_to(turned, (held.shape[0], *turned.shape)), held], axis)


def attend(
    query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False, rate: Any = None, rng: Any = None
) -> Any:
    """`softmax(q k / sqrt(d)) v` per head, the softmax in float32; each key head serves as many query heads.

    Args:
        query: [B, T, heads, d].
        key, value: [B, S, kv_heads, d].
        mask: bool[B or 1, 1, T or 1, S], True where a query may look; None is everywhere.
        causal: whether a query sees the keys up to its own only, T being S.
        rate: the share of attention weights that is dropped; None drops nothing.
        rng: the key of what is dropped; None drops nothing.

    Returns:
        [B, T, heads, d].
    """
    if rate is None or rng is None:
        return jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=causal)
    if causal:
        below = causal_mask(query.shape[1])
        mask = below if mask is None else mask & below
    grouped = query.reshape(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=jnp.float32)
    weights = dropped(_weights(scores, mask, query.shape[3]), rate, rng).astype(value.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, value).reshape(query.shape)


def put_in(cache: Any, new: Any, at: Any) -> Any:
    """A cache with the rows of new tokens put in, each sequence at its own place.

    Args:
        cache: [B, kv_heads, S, d].
        new: [B, T, kv_heads, d].
        at: int32[B], the place of the first new token; at most S - T.
    """
    rows = jnp.moveaxis(new, 1, 2).astype(cache.dtype)
    if cache.shape[0] == 1:  # an update in place; with several places XLA writes a loop over the sequences
        return jax.lax.dynamic_update_slice(cache, rows, (0, 0, at[0], 0))
    return jax.vmap(lambda held, row, place: jax.lax.dynamic_update_slice(held, row, (0, place, 0)))(cache, rows, at)


def attend_cached(query: Any, keys: Any, values: Any, mask: Any) -> Any:
    """`attend` over a cache, whose keys need not be turned round for the product.

    Args:
        query: [B, T, heads, d].
        keys, values: [B, kv_heads, S, d].
        mask: bool[B, 1, T, S].

    Returns:
        [B, T, heads, d].
    """
    batch, length, _, width = query.shape
    grouped = jnp.moveaxis(query.reshape(batch, length, keys.shape[1], -1, width), 1, 3)
    scores = jnp.einsum("bkgtd,bksd->bkgts", grouped, keys, preferred_element_type=jnp.float32)
    weights = _weights(scores, mask, width).astype(values.dtype)
    return jnp.moveaxis(jnp.einsum("bkgts,bksd->bkgtd", weights, values), 3, 1).reshape(query.shape)


def _weights(scores: Any, mask: Any, width: int) -> Any:
    """The softmax of scores f32[B, kv_heads, groups, T, S], where the mask allows it."""
    scaled = scores / jnp.sqrt(jnp.float32(width))
    return jax.nn.softmax(scaled if mask is None else jnp.where(mask[:, :, None], scaled, _MASKED), axis=-1)
