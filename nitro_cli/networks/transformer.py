"""`transformer`: the decoder of language models, from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Declared, Device, RowSpec
from nitro_cli.networks.hidden import Rate, Width
from nitro_cli.networks.network import Network, register_network

__all__ = ["Transformer"]


@register_network("transformer")
class Transformer(Network):
    """A causal transformer: ids (B, T) to logits (B, T, V), V being the width of the output.

    RMSNorm before attention and SwiGLU, rotary positions, no biases. Batch fields `segment` and `position`, int32
    (B, T), are taken where the batch has them: attention stays within a segment.
    """

    optional_inputs: ClassVar[tuple[str, ...]] = ("segment", "position")

    width: Width
    """The features of a token."""

    depth: Width
    """How many blocks."""

    heads: Width
    """How many attention heads; they divide `width`, and a head's width is even."""

    max_seq_len: Width
    """The most tokens of a row."""

    kv_heads: Width | None = None
    """How many heads keys and values have; they divide `heads`, which it is unless given."""

    ffn_mult: Annotated[int, Field(ge=1)] = 4
    """The feed-forward part is int(2 * ffn_mult * width / 3) wide."""

    rope_base: Annotated[float, Field(gt=0)] = 1e4
    """The base of the rotary wavelengths."""

    tie_embeddings: bool = True
    """Whether the table of embeddings is also the head."""

    remat: bool = False
    """Whether the backward pass computes blocks anew, which takes time in the place of memory."""

    attention_dropout: Device[Rate | None] = None
    """The share of attention weights that is dropped in training; unset, no mask is drawn."""

    residual_dropout: Device[Rate | None] = None
    """The share dropped of what each half of a block adds; unset, no mask is drawn."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        told = None
        if self.width % self.heads:
            told = f"heads = {self.heads} does not divide width = {self.width}"
        elif (self.width // self.heads) % 2:
            told = f"a head is {self.width // self.heads} wide (width / heads), and rotary pairs need an even width"
        elif self.kv_heads is not None and self.heads % self.kv_heads:
            told = f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}"
        if told is not None:
            raise PydanticCustomError("network", "{told}", {"told": told})
        return self

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> dict[str, Any]:
        """As of every network; rows longer than `max_seq_len` are refused."""
        if declared.length is not None and declared.length > self.max_seq_len:
            raise ConfigError(
                f"rows of {declared.length} tokens are longer than max_seq_len = {self.max_seq_len}",
                where="network.max_seq_len",
                fix="make the rows shorter, or max_seq_len larger",
            )
        return super().fills(data, batch, declared)

    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model, its parameters `embed`, `blocks/<i>`, `norm` and, untied, `head`; it has no layer state."""
        from nitro_cli.networks.blocks import gated_width
        from nitro_cli.networks.transformer_model import TransformerModel

        model = TransformerModel(
            vocab=self.required_outputs(outputs),
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            inner=gated_width(self.ffn_mult, self.width),
            max_seq_len=self.max_seq_len,
            rope_base=self.rope_base,
            tied=self.tie_embeddings,
            remat=self.remat,
        )
        return model, model.init(rng), {}
