"""The decoder of language models: what it computes from ids, whole or token by token over a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import ConfigError
from nitro_cli.networks.attention import (
    attend,
    attend_cached,
    causal_mask,
    in_front,
    put_in,
    rotary_angles,
    rotated,
    with_open_keys,
)
from nitro_cli.networks.blocks import BlockDropout, new_block, new_kernel, new_table, rms_norm, transformer_block
from nitro_cli.networks.layers import tap

__all__ = ["TransformerModel"]


@dataclass(frozen=True)
class TransformerModel:
    """A causal transformer over ids, as functions of its parameters.

    Per block `x + attention(norm(x))`, then `x + ffn(norm(x))`: RMSNorm, rotary positions, SwiGLU, no biases (the form
    of LLaMA: Touvron et al., arXiv:2302.13971).

    Attributes:
        vocab: V, how many ids there are.
        width, depth, heads, kv_heads: of the blocks; `kv_heads` key heads serve `heads` query heads.
        inner: the width of the feed-forward part.
        max_seq_len: how many tokens a row may have.
        rope_base: the base of the rotary wavelengths.
        tied: whether the table of embeddings is also the kernel of the head.
        remat: whether a backward pass computes the blocks anew, instead of keeping what they made.
    """

    vocab: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    inner: int
    max_seq_len: int
    rope_base: float = 1e4
    tied: bool = True
    remat: bool = False

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    def init(self, key: Any) -> dict[str, Any]:
        """Parameters at their start, float32."""
        table, head, *blocks = jax.random.split(key, self.depth + 2)
        kv_width = self.head_width * self.kv_heads
        params = {
            "embed": {"table": new_table(table, self.vocab, self.width)},
            "blocks": {str(i): new_block(each, self.width, kv_width, self.inner) for i, each in enumerate(blocks)},
            "norm": {"scale": jnp.ones(self.width)},
        }
        return params if self.tied else params | {"head": {"kernel": new_kernel(head, self.width, self.vocab)}}

    def __call__(
        self,
        params: Any,
        state: Any,
        ids: Any,
        *,
        segment: Any = None,
        position: Any = None,
        prefix: Sequence[tuple[Any, Any]] = (),
        soft_prompt: Any = None,
        attention_dropout: Any = None,
        residual_dropout: Any = None,
        train: bool = False,
        key: Any = None,
    ) -> tuple[Any, Any]:
        """The logits of whole rows.

        Args:
            params: as `init` makes them.
            state: its layer state, which is empty.
            ids: int32[B, T].
            segment: int32[B, T], which segment of its row a token belongs to: attention stays within it.
            position: int32[B, T], where a token stands, for its rotation; None counts from the start of the row.
            prefix: keys and values [n, kv_heads, head width] for each of the first blocks: every query sees them, and
                they are not rotated.
            soft_prompt: [n, width], rows before the embedded tokens that every query sees; they take n places of the
                window, and their own outputs are cut off.
            attention_dropout, residual_dropout: what share of the attention weights, and of what a block adds to its
                input, is dropped in training; None draws no mask.
            train: whether anything is dropped.
            key: for what is dropped.

        Returns:
            Logits f32[B, T, V], and the state.

        Raises:
            ConfigError: while tracing: a row is longer than `max_seq_len`.
        """
        length = ids.shape[1]
        x, opening = self._embedded(params, ids, soft_prompt)
        self._check_length(length, opening, self.max_seq_len)
        place = jnp.broadcast_to(jnp.arange(length), ids.shape) if position is None else position
        whole = jnp.concatenate(
            [jnp.broadcast_to(jnp.arange(opening), (ids.shape[0], opening)), opening + place], axis=1
        )
        angles = rotary_angles(whole, self.head_width, self.rope_base)
        mask = causal_mask(length, segment, opening) if segment is not None or prefix else None
        dropout = BlockDropout(attention_dropout, residual_dropout, key if train else None)

        def block(number: int, own: Any, x: Any) -> Any:
            drop = dropout.of_block(number)

            def attention(query: Any, keys: Any, values: Any) -> tuple[Any, None]:
                query, keys, seen = rotated(query, angles), rotated(keys, angles), mask
                if number < len(prefix):
                    keys, values = (
                        in_front(rows, own, 1) for rows, own in zip(prefix[number], (keys, values), strict=True)
                    )
                    seen = with_open_keys(mask, len(prefix[number][0]))
                words = {"rate": drop.attention, "rng": drop.site(0)}
                return attend(query, keys, values, mask=seen, causal=seen is None, **words), None

            return transformer_block(own, x, self.head_width, attention, drop)[0]

        for number in range(self.depth):
            each = jax.checkpoint(block, static_argnums=0) if self.remat else block
            x = tap(f"blocks/{number}", each(number, params["blocks"][str(number)], x))
        return self._logits(params, x[:, opening:]), state

    def init_cache(self, batch: int, length: int, dtype: Any = jnp.float32) -> dict[str, Any]:
        """An empty cache for `decode`.

        Args:
            batch: B, how many rows are decoded side by side.
            length: S, how many tokens (with a soft prompt its rows too) each has room for.
            dtype: of the keys and values.

        Returns:
            `keys` and `values`, per block an array [B, kv_heads, S, head width], and `length`, int32[B]: how many
            tokens of each row are in it. What lies behind a row's length is never seen, and written over.

        Raises:
            ConfigError: `length` is above `max_seq_len`.
        """
        self._check_length(length, 0, self.max_seq_len)
        shape = (batch, self.kv_heads, length, self.head_width)
        return {
            "keys": tuple(jnp.zeros(shape, dtype) for _ in range(self.depth)),
            "values": tuple(jnp.zeros(shape, dtype) for _ in range(self.depth)),
            "length": jnp.zeros(batch, jnp.int32),
        }

    def decode(
        self,
        params: Any,
        cache: Any,
        ids: Any,
        lengths: Any = None,
        *,
        prefix: Sequence[tuple[Any, Any]] = (),
        soft_prompt: Any = None,
    ) -> tuple[Any, Any]:
        """The logits of further tokens, behind those in the cache: those of the full pass.

        Shapes do not depend on how far a row is, so that one program makes every token, and gives back a cache of the
        shapes of the one it was given, which may be donated. The first call, with rows of unlike lengths padded on the
        right, says their `lengths`; each further token stands behind its own row's.

        Args:
            params: as `init` makes them.
            cache: as `init_cache` or a call before made it. Of each row `length` + T tokens have to fit into it.
            ids: int32[B, T], the next T tokens of each row.
            lengths: int32[B], 1 to T: how many of a row's `ids`, from the left, count; None is all of them.
            prefix: as of a call.
            soft_prompt: as of a call; given with the first tokens only, as its rows then are in the cache.

        Returns:
            Logits f32[B, T, V], or with `lengths` f32[B, 1, V], those of each row's last token that counts; and the
            cache with these tokens.

        Raises:
            ConfigError: while tracing: more tokens than the cache has room for.
        """
        x, opening = self._embedded(params, ids, soft_prompt)
        slots, at = cache["keys"][0].shape[2], cache["length"]
        self._check_length(ids.shape[1], opening, slots)
        place = at[:, None] + jnp.arange(x.shape[1])
        angles = rotary_angles(place, self.head_width, self.rope_base)
        mask = (jnp.arange(slots) <= place[:, :, None])[:, None]
        made = []
        for number in range(self.depth):
            held = cache["keys"][number], cache["values"][number]

            def attention(query: Any, keys: Any, values: Any, held: Any = held, number: int = number) -> Any:
                kept = put_in(held[0], rotated(keys, angles), at), put_in(held[1], values, at)
                seen, allowed = kept, mask
                if number < len(prefix):
                    seen = tuple(in_front(rows, all_, 2) for rows, all_ in zip(prefix[number], kept, strict=True))
                    allowed = with_open_keys(mask, len(prefix[number][0]))
                return attend_cached(rotated(query, angles), *seen, allowed), kept

            x, kept = transformer_block(params["blocks"][str(number)], x, self.head_width, attention, BlockDropout())
            made.append(kept)
        x = x[:, opening:]
        if lengths is not None:
            x = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
        counted = opening + (ids.shape[1] if lengths is None else lengths)
        keys, values = zip(*made, strict=True)
        return self._logits(params, x), {"keys": keys, "values": values, "length": at + counted}

    def _embedded(self, params: Any, ids: Any, soft_prompt: Any) -> tuple[Any, int]:
        """The rows that enter the first block, and how many of them stand before the tokens."""
        table = params["embed"]["table"]
        x = table[ids]
        if soft_prompt is None:
            return x, 0
        rows = jnp.broadcast_to(soft_prompt.astype(table.dtype), (ids.shape[0], *soft_prompt.shape))
        return jnp.concatenate([rows, x], axis=1), len(soft_prompt)

    def _logits(self, params: Any, x: Any) -> Any:
        normed = rms_norm(params["norm"], x)
        if self.tied:
            return jnp.einsum("btd,vd->btv", normed, params["embed"]["table"], preferred_element_type=jnp.float32)
        return jnp.einsum("btd,dv->btv", normed, params["head"]["kernel"], preferred_element_type=jnp.float32)

    def _check_length(self, tokens: int, opening: int, room: int) -> None:
        if opening + tokens <= room:
            return
        behind = f", behind {opening} rows of a soft prompt," if opening else ""
        if room < self.max_seq_len:
            raise ConfigError(
                f"{tokens} tokens{behind} do not fit into a cache of {room}", where="decode", fix="make a longer cache"
            )
        raise ConfigError(
            f"a row of {tokens} tokens{behind} is longer than max_seq_len = {self.max_seq_len}",
            where="the transformer",
            fix="make the rows shorter, or max_seq_len larger",
        )
