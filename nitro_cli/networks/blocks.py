"""The block of transformer and vit: pre-norm attention, then a gated feed-forward part, without biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.networks.layers import dropped

__all__ = ["BlockDropout", "gated_width", "new_block", "new_kernel", "new_table", "rms_norm", "transformer_block"]

_EPSILON = 1e-6


def gated_width(ffn_mult: int, width: int) -> int:
    """The width of a gated feed-forward part: with its three kernels about the parameters of two kernels of
    `ffn_mult * width` (Shazeer, arXiv:2002.05202)."""
    return int(2 * ffn_mult * width / 3)


def new_kernel(key: Any, inner: int, outer: int) -> Any:
    """A kernel f32[inner, outer] at its start: truncated normal of variance 1/inner."""
    return jax.nn.initializers.lecun_normal()(key, (inner, outer), jnp.float32)


def new_table(key: Any, *shape: int) -> Any:
    """A table or positions at their start, N(0, 0.02), float32."""
    return 0.02 * jax.random.normal(key, shape)


def new_block(key: Any, width: int, kv_width: int, inner: int) -> dict[str, Any]:
    """The parameters of a block at their start, float32.

    Args:
        key: for the kernels.
        width: of the block.
        kv_width: of its keys and values, all heads together.
        inner: of the feed-forward part.
    """
    query, keys, values, out, gate, up, down = jax.random.split(key, 7)
    return {
        "attention_norm": {"scale": jnp.ones(width)},
        "attention": {
            "query": {"kernel": new_kernel(query, width, width)},
            "key": {"kernel": new_kernel(keys, width, kv_width)},
            "value": {"kernel": new_kernel(values, width, kv_width)},
            "out": {"kernel": new_kernel(out, width, width)},
        },
        "ffn_norm": {"scale": jnp.ones(width)},
        "ffn": {
            "gate": {"kernel": new_kernel(gate, width, inner)},
            "up": {"kernel": new_kernel(up, width, inner)},
            "down": {"kernel": new_kernel(down, inner, width)},
        },
    }


def rms_norm(params: Any, x: Any) -> Any:
    """`scale * x / sqrt(mean(x^2) + 1e-6)` over the last axis, in float32 (Zhang and Sennrich, arXiv:1910.07467)."""
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + _EPSILON)
    return (scaled * params["scale"]).astype(x.dtype)


@dataclass(frozen=True)
class BlockDropout:
    """What a block drops in training.

    Attributes:
        attention, residual: the share of the attention weights, and of what is added to the input; None draws no mask.
        rng: the key of the block.
    """

    attention: Any = None
    residual: Any = None
    rng: Any = None

    def of_block(self, number: int) -> BlockDropout:
        """The same with the key of one block of a network."""
        return self if self.rng is None else replace(self, rng=jax.random.fold_in(self.rng, number))

    def site(self, number: int) -> Any:
        """The key of one of its three places; None where nothing is dropped."""
        return None if self.rng is None else jax.random.fold_in(self.rng, number)


Attention = Callable[[Any, Any, Any], tuple[Any, Any]]


def transformer_block(
    params: Any, x: Any, head_width: int, attention: Attention, drop: BlockDropout
) -> tuple[Any, Any]:
    """One block.

    Args:
        params: as `new_block` makes them.
        x: [B, T, width].
        head_width: of a head.
        attention: called with queries [B, T, heads, head width], and keys and values [B, T, kv_heads, head width];
            gives what the queries see, [B, T, heads, head width], and a value that is handed on.
        drop: what is dropped.

    Returns:
        [B, T, width], and what `attention` handed on.
    """
    normed = rms_norm(params["attention_norm"], x)
    heads = [
        (normed @ params["attention"][name]["kernel"]).reshape(*x.shape[:2], -1, head_width)
        for name in ("query", "key", "value")
    ]
    seen, handed = attention(*heads)
    x = x + dropped(seen.reshape(x.shape) @ params["attention"]["out"]["kernel"], drop.residual, drop.site(1))
    normed = rms_norm(params["ffn_norm"], x)
    ffn = params["ffn"]
    gated = jax.nn.silu(normed @ ffn["gate"]["kernel"]) * (normed @ ffn["up"]["kernel"])
    return x + dropped(gated @ ffn["down"]["kernel"], drop.residual, drop.site(2)), handed
