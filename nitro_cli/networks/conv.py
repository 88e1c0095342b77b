"""`conv`: convolution blocks and dense layers over images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import RowSpec
from nitro_cli.networks.hidden import LayerStack, Width
from nitro_cli.networks.network import register_network

__all__ = ["Conv"]


@register_network("conv")
class Conv(LayerStack):
    """Blocks of convolution, activation and max-pool over images (B, H, W, C), hidden layers, and a head: (B, outputs).

    `activations`, `dropouts` and `norm` are those of the hidden layers; blocks have `activation`.
    """

    channels: Annotated[tuple[Width, ...], Field(min_length=1)]
    """The channels of each block."""

    kernel: Width = 5
    """Pixels of a kernel's side."""

    stride: Width = 1
    """Pixels from one place of the kernel to the next."""

    padding: Annotated[int, Field(ge=0)] = 0
    """Rows and columns of zeros around the image, before each convolution."""

    pool: Width = 2
    """Pixels of a side of what is pooled to its largest, next to each other; 1 pools nothing."""

    image: tuple[Width, Width, Width] | None = None
    """Height, width and channels of flat rows."""

    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model, its parameters `conv/<i>`, `hidden/<i>` and `head`, and its layer state.

        Raises:
            ConfigError: the input is no image, or nothing is left of it behind a block.
        """
        import jax
        import jax.numpy as jnp

        from nitro_cli.networks.conv_model import ConvModel
        from nitro_cli.networks.layers import new_dense

        image = self._image(shapes)
        blocks = self._blocks(image)
        width, layers = self.required_outputs(outputs), self.layers()
        keys = list(jax.random.split(rng, len(blocks) + len(self.hidden) + 1))
        start = jax.nn.initializers.lecun_normal(in_axis=(0, 1, 2), out_axis=3)
        conv, inner = {}, image[2]
        for number, (key, outer) in enumerate(zip(keys, self.channels, strict=False)):
            kernel = start(key, (self.kernel, self.kernel, inner, outer), jnp.float32)
            conv[str(number)] = {"kernel": kernel, "bias": jnp.zeros(outer)}
            inner = outer
        features = math.prod(blocks[-1].pooled) * inner
        hidden, running, last = layers.init(keys[len(blocks) : -1], features)
        params = {"conv": conv, "head": new_dense(keys[-1], last, width)} | ({"hidden": hidden} if hidden else {})
        return ConvModel(image, blocks, self.activation, layers), params, {"hidden": running} if running else {}

    def _image(self, shapes: Mapping[str, RowSpec]) -> tuple[int, int, int]:
        (_, spec), *more = shapes.items()
        if not more and len(spec.shape) == 3 and self.image in (None, spec.shape):
            return spec.shape
        if not more and len(spec.shape) == 1 and self.image is not None and math.prod(self.image) == spec.shape[0]:
            return self.image
        told = ", ".join(f"{key} {list(row.shape)}" for key, row in shapes.items())
        written = "" if self.image is None else f", and image = {list(self.image)} has {math.prod(self.image)} numbers"
        raise ConfigError(
            f"conv takes one image (H, W, C), and gets {told}{written}",
            where="network.image",
            fix="write image = [H, W, C] for flat rows, or name another input",
        )

    def _blocks(self, image: tuple[int, int, int]) -> tuple[Any, ...]:
        from nitro_cli.networks.conv_model import ConvBlock

        sides, found = image[:2], []
        for number in range(len(self.channels)):
            made = tuple((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in sides)
            left = tuple(side // self.pool for side in made)
            if min(made) < 1 or min(left) < 1:
                raise ConfigError(
                    f"nothing is left of an image of {sides[0]} x {sides[1]} behind block conv/{number}",
                    where="network",
                    why=f"kernel {self.kernel}, stride {self.stride} and padding {self.padding} leave "
                    f"{made[0]} x {made[1]}, pool {self.pool} leaves {left[0]} x {left[1]}",
                    fix="choose a smaller kernel, stride or pool, more padding, or fewer channels",
                )
            found.append(ConvBlock(self.kernel, self.stride, self.padding, self.pool, made, left))  # type: ignore[arg-type]
            sides = left  # type: ignore[assignment]
        return tuple(found)
