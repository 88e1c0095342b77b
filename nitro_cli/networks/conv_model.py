"""Convolution blocks over images: convolution, activation, max-pool; as one operation, or as a product over patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.networks.hidden import HiddenLayers
from nitro_cli.networks.layers import activation, logits_of, tap

__all__ = ["PATCH_BYTES", "ConvBlock", "ConvModel", "convolved", "patched", "pooled"]

PATCH_BYTES = 256 * 2**20
"""Patches of a micro-batch up to which a block contracts patches on a CPU."""


@dataclass(frozen=True)
class ConvBlock:
    """The sizes of a block.

    Attributes:
        kernel, stride, padding, pool: in pixels, alike along both axes.
        convolved, pooled: the sides of the image that leaves the convolution, and of the one that leaves the pool.
    """

    kernel: int
    stride: int
    padding: int
    pool: int
    convolved: tuple[int, int]
    pooled: tuple[int, int]


def convolved(x: Any, kernel: Any, stride: int, padding: int) -> Any:
    """The convolution of x [B, H, W, C] with a kernel [k, k, C, out], as XLA has it."""
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def patched(x: Any, kernel: Any, stride: int, padding: int) -> Any:
    """The same as a contraction of every patch with the kernel's first three axes."""
    side = kernel.shape[0]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = ((n - side) // stride + 1 for n in x.shape[1:3])

    def taken(row: int, column: int) -> Any:
        ends = (row + stride * (rows - 1) + 1, column + stride * (columns - 1) + 1)
        return jax.lax.slice(x, (0, row, column, 0), (x.shape[0], *ends, x.shape[3]), strides=(1, stride, stride, 1))

    patches = jnp.stack([jnp.stack([taken(r, c) for c in range(side)], axis=3) for r in range(side)], axis=3)
    return jnp.einsum("bhwrci,rcio->bhwo", patches, kernel)


def pooled(x: Any, pool: int) -> Any:
    """The largest of each pool x pool window of x [B, H, W, C]; what is left at the far edges is dropped."""
    height, width = (n // pool for n in x.shape[1:3])
    x = x[:, : height * pool, : width * pool]
    return x.reshape(x.shape[0], height, pool, width, pool, x.shape[3]).max(axis=(2, 4))


def _pooled_by_window(x: Any, pool: int) -> Any:
    window = (1, pool, pool, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


@dataclass(frozen=True)
class ConvModel:
    """What `conv` computes.

    Attributes:
        image: H, W, C of the input.
        blocks: the convolution blocks.
        activation: of the blocks.
        hidden: the dense layers behind them.
    """

    image: tuple[int, int, int]
    blocks: tuple[ConvBlock, ...]
    activation: str
    hidden: HiddenLayers

    def __call__(self, params: Any, state: Any, image: Any, *, train: bool, key: Any, **rates: Any) -> Any:
        """Logits f32[B, outputs] of images [B, H, W, C], or of rows [B, H * W * C] read in that order."""
        x = image if jnp.issubdtype(image.dtype, jnp.floating) else image.astype(jnp.float32)
        x = x.reshape(x.shape[0], *self.image)
        for number, block in enumerate(self.blocks):
            own = params["conv"][str(number)]
            x = self._block(x, own, block)
            x = tap(f"conv/{number}", x)
        held = state.get("hidden", {})
        flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        x, running = self.hidden(params.get("hidden", {}), held, flat, train=train, key=key, **rates)
        return logits_of(params["head"], x), {"hidden": running} if running else state

    def _block(self, x: Any, own: Mapping[str, Any], block: ConvBlock) -> Any:
        kernel = own["kernel"]
        form = patched if self.contracts(block, x.shape[0], kernel.shape[2], x.dtype.itemsize) else convolved
        made = activation(self.activation)(form(x, kernel, block.stride, block.padding) + own["bias"])
        return pooled(made, block.pool) if form is patched else _pooled_by_window(made, block.pool)

    def contracts(self, block: ConvBlock, rows: Any, channels: int, itemsize: int) -> bool:
        """Whether a block contracts patches: on a CPU, where a convolution is slow, if the patches are not too many. A
        program for any number of rows, as an exported one is, does not."""
        if not isinstance(rows, int):
            return False
        size = rows * math.prod(block.convolved) * block.kernel**2 * channels * itemsize
        return jax.default_backend() == "cpu" and size <= PATCH_BYTES
