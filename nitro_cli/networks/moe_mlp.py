"""`moe_mlp`: a perceptron whose hidden layers are mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.experiment import RowSpec
from nitro_cli.networks.hidden import LayerStack, Width
from nitro_cli.networks.layers import activation, dropped, flat_rows, logits_of, new_dense, new_norm, norm_of, tap
from nitro_cli.networks.network import register_network

__all__ = ["MoEMLP", "load_balance"]


@register_network("moe_mlp")
class MoEMLP(LayerStack):
    """Hidden layers of experts over rows [B, ...], which are flattened, and a plain head.

    Of each layer a row gets the sum over its `top_k` experts k of g_k E_k(x), g being the softmax over the k largest
    logits of a router without bias, as in Mixtral (Jiang et al., arXiv:2401.04088); E_k is a dense layer.
    Every expert computes every row, and none is dropped.

    The output is `{"logits", "router"}`; `router` holds f32[B, layers, E] `share`, of a row's k slots and without
    gradient, and `probability`, the softmax over all experts. So the task needs `output = "logits"`.
    """

    hidden: Annotated[tuple[Width, ...], Field(min_length=1)]
    """The widths of the hidden layers."""

    experts: Annotated[int, Field(ge=2)]
    """How many experts each layer has."""

    top_k: Width = 2
    """How many of them a row goes through."""

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.top_k > self.experts:
            told = f"top_k = {self.top_k} is above experts = {self.experts}"
            raise PydanticCustomError("network", "{told}", {"told": told})
        return self

    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model as a function, its parameters `hidden/<i>/{router,experts}` and `head`, and its layer state."""
        import jax
        import jax.numpy as jnp

        width = self.required_outputs(outputs)
        inner = sum(math.prod(spec.shape) for spec in shapes.values())
        start = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=2, batch_axis=0)
        *keys, head = jax.random.split(rng, len(self.hidden) + 1)
        hidden, state = {}, {}
        for number, (key, outer) in enumerate(zip(keys, self.hidden, strict=True)):
            router, experts = jax.random.split(key)
            norm, running = new_norm(self.norm, outer)
            hidden[str(number)] = {
                "router": {"kernel": new_dense(router, inner, self.experts)["kernel"]},
                "experts": {
                    "kernel": start(experts, (self.experts, inner, outer), jnp.float32),
                    "bias": jnp.zeros((self.experts, outer)),
                },
            } | ({"norm": norm} if norm else {})
            if running:
                state[str(number)] = {"norm": running}
            inner = outer
        model = _Mixture(self.layers().activations, self.norm, self.top_k)  # type: ignore[arg-type]
        return model, {"hidden": hidden, "head": new_dense(head, inner, width)}, {"hidden": state} if state else {}


def load_balance(router: Mapping[str, Any]) -> Any:
    """How evenly rows go to experts: the sum over layers of E sum_e mean(share_e) mean(probability_e), 1 per layer
    where all are alike (Fedus et al., arXiv:2101.03961).

    Args:
        router: `share` and `probability`, f32[B, layers, E].
    """
    share, probability = router["share"].mean(axis=0), router["probability"].mean(axis=0)
    return share.shape[-1] * (share * probability).sum()


@dataclass(frozen=True)
class _Mixture:
    activations: tuple[str, ...]
    norm: str
    top_k: int

    def __call__(
        self, params: Any, state: Any, *inputs: Any, train: bool, key: Any, dropout: Any = None, dropouts: Any = None
    ) -> Any:
        import jax
        import jax.numpy as jnp

        x, held = flat_rows(inputs), state.get("hidden", {})
        moved: dict[str, Any] = {}
        shares, probabilities = [], []
        for number, name in enumerate(self.activations):
            own, place = params["hidden"][str(number)], str(number)
            x, share, probability = self._mixed(own, x)
            shares.append(share)
            probabilities.append(probability)
            if self.norm != "none":
                x, running = norm_of(self.norm, own["norm"], held.get(place, {}).get("norm", {}), x, train)
                moved |= {place: {"norm": running}} if running else {}
            x = tap(f"hidden/{number}", activation(name)(x))
            rate = dropout if dropouts is None else dropouts[number]
            if train and key is not None and rate is not None:
                x = dropped(x, rate, jax.random.fold_in(key, number))
        router = {"share": jnp.stack(shares, axis=1), "probability": jnp.stack(probabilities, axis=1)}
        return {"logits": logits_of(params["head"], x), "router": router}, {"hidden": moved} if moved else state

    def _mixed(self, own: Mapping[str, Any], x: Any) -> tuple[Any, Any, Any]:
        """What a layer gives, [B, out], the share of each expert, and its probability, f32[B, E]."""
        import jax
        import jax.numpy as jnp

        logits = jnp.matmul(x, own["router"]["kernel"], preferred_element_type=jnp.float32)
        best, chosen = jax.lax.top_k(logits, self.top_k)
        picked = jax.nn.one_hot(chosen, logits.shape[-1], dtype=jnp.float32)
        gates = (jax.nn.softmax(best, axis=-1)[..., None] * picked).sum(axis=1)
        each = jnp.einsum("bi,eio->beo", x, own["experts"]["kernel"]) + own["experts"]["bias"]
        share = picked.mean(axis=1)  # of whole numbers, which have no gradient
        return jnp.einsum("be,beo->bo", gates.astype(x.dtype), each), share, jax.nn.softmax(logits, axis=-1)
