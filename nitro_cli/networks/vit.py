"""`vit`: a transformer over the patches of images, from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Device, RowSpec
from nitro_cli.networks.hidden import Rate, Width
from nitro_cli.networks.network import Network, register_network

__all__ = ["ViT"]

Readout = Literal["cls", "mean", "tokens"]


@register_network("vit")
class ViT(Network):
    """A vision transformer (Dosovitskiy et al., arXiv:2010.11929) over images (B, H, W, C).

    The patches, in raster order, stand behind a learned token, with learned positions; blocks of RMSNorm, attention to
    everything and SwiGLU, without biases. The batch field `keep`, where there is one, leaves the other patches out:
    int32 (B, k) names those that stay from 0 on, unique in a row, before the first block; bool (B, n) is True for them,
    one shape for every mask, and what is not kept is no key of any attention.
    """

    optional_inputs: ClassVar[tuple[str, ...]] = ("keep",)

    patch: Width = 4
    """Pixels of a patch's side; it divides both sides of the image."""

    width: Width = 64
    """The features of a token."""

    depth: Width = 4
    """How many blocks."""

    heads: Width = 4
    """How many attention heads; they divide `width`."""

    ffn_mult: Annotated[int, Field(ge=1)] = 4
    """The feed-forward part is int(2 * ffn_mult * width / 3) wide."""

    readout: Readout = "cls"
    """What leaves: the head over the learned token or over the `mean` of the kept patches, (B, outputs), or all
    `tokens`, (B, n + 1, width), the learned one first."""

    attention_dropout: Device[Rate | None] = None
    """The share of attention weights that is dropped in training; unset, no mask is drawn."""

    residual_dropout: Device[Rate | None] = None
    """The share dropped of what each half of a block adds; unset, no mask is drawn."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            told = f"heads = {self.heads} does not divide width = {self.width}"
            raise PydanticCustomError("network", "{told}", {"told": told})
        return self

    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model, its parameters `patch`, `cls`, `position`, `blocks/<i>`, `norm` and, but for tokens, `head`.

        Raises:
            ConfigError: the input is no image, or `patch` does not divide a side.
        """
        from nitro_cli.networks.blocks import gated_width

        (name, spec), *more = shapes.items()
        if more or len(spec.shape) != 3:
            told = ", ".join(f"{key} {list(row.shape)}" for key, row in shapes.items())
            raise ConfigError(f"vit takes one image (H, W, C), and gets {told}", where="network.inputs")
        height, wide, channels = spec.shape
        if height % self.patch or wide % self.patch:
            raise ConfigError(
                f"patches of {self.patch} pixels do not divide {name} of {height} x {wide}",
                where="network.patch",
                fix="choose a divisor of both sides",
            )
        head = None if self.readout == "tokens" else self.required_outputs(outputs)
        model = _VisionModel(self.patch, self.width // self.heads, self.readout)
        count = (height // self.patch) * (wide // self.patch)
        inner = gated_width(self.ffn_mult, self.width)
        return model, _start(rng, self.patch**2 * channels, count, self.width, self.depth, inner, head), {}


def _start(rng: Any, pixels: int, count: int, width: int, depth: int, inner: int, head: int | None) -> dict[str, Any]:
    """Parameters at their start, float32."""
    import jax
    import jax.numpy as jnp

    from nitro_cli.networks.blocks import new_block, new_kernel, new_table
    from nitro_cli.networks.layers import new_dense

    patch, cls, position, last, *blocks = jax.random.split(rng, depth + 4)
    params = {
        "patch": {"kernel": new_kernel(patch, pixels, width)},
        "cls": new_table(cls, width),
        "position": new_table(position, count + 1, width),
        "blocks": {str(number): new_block(key, width, width, inner) for number, key in enumerate(blocks)},
        "norm": {"scale": jnp.ones(width)},
    }
    return params if head is None else params | {"head": new_dense(last, width, head)}


@dataclass(frozen=True)
class _VisionModel:
    patch: int
    head_width: int
    readout: str

    def __call__(
        self,
        params: Any,
        state: Any,
        image: Any,
        *,
        keep: Any = None,
        attention_dropout: Any = None,
        residual_dropout: Any = None,
        train: bool = False,
        key: Any = None,
    ) -> Any:
        import jax.numpy as jnp

        from nitro_cli.networks.attention import attend
        from nitro_cli.networks.blocks import BlockDropout, rms_norm, transformer_block
        from nitro_cli.networks.layers import logits_of, tap

        patches = self._patches(image, params["patch"]["kernel"].dtype)
        position, place, mask = params["position"], params["position"][1:], None
        # What is left out goes before the product: whatever it holds, no output and no gradient has part in it.
        if keep is not None and keep.dtype == bool:
            mask = jnp.pad(keep, ((0, 0), (1, 0)), constant_values=True)[:, None, None, :]
            patches = jnp.where(keep[..., None], patches, 0)
        elif keep is not None:
            patches, place = jnp.take_along_axis(patches, keep[..., None], axis=1), place[keep]
        x = patches @ params["patch"]["kernel"] + place
        first = jnp.broadcast_to(params["cls"] + position[0], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([first.astype(x.dtype), x], axis=1)
        dropout = BlockDropout(attention_dropout, residual_dropout, key if train else None)
        for number in range(len(params["blocks"])):
            drop = dropout.of_block(number)

            def attention(query: Any, keys: Any, values: Any, drop: BlockDropout = drop) -> tuple[Any, None]:
                return attend(query, keys, values, mask=mask, rate=drop.attention, rng=drop.site(0)), None

            x = transformer_block(params["blocks"][str(number)], x, self.head_width, attention, drop)[0]
            x = tap(f"blocks/{number}", x)
        x = rms_norm(params["norm"], x)
        if self.readout == "tokens":
            return x if mask is None else jnp.where(mask[:, 0, 0, :, None], x, 0), state
        if self.readout == "cls":
            return logits_of(params["head"], x[:, 0]), state
        kept = jnp.ones(x.shape[:2], bool) if mask is None else mask[:, 0, 0]
        weights = kept[:, 1:].astype(jnp.float32)
        mean = (x[:, 1:] * weights[..., None]).sum(axis=1) / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
        return logits_of(params["head"], mean.astype(x.dtype)), state

    def _patches(self, image: Any, dtype: Any) -> Any:
        """[B, n, patch * patch * C], in raster order."""
        import jax.numpy as jnp

        image = image if jnp.issubdtype(image.dtype, jnp.floating) else image.astype(dtype)
        batch, height, width, channels = image.shape
        side = self.patch
        tiles = image.reshape(batch, height // side, side, width // side, side, channels)
        return jnp.moveaxis(tiles, 3, 2).reshape(batch, -1, side * side * channels)
