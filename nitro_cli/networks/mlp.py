"""`mlp`: dense layers over flattened rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nitro_cli.experiment import RowSpec
from nitro_cli.networks.hidden import HiddenLayers, LayerStack
from nitro_cli.networks.layers import flat_rows, logits_of, new_dense
from nitro_cli.networks.network import register_network

__all__ = ["MLP"]


@register_network("mlp")
class MLP(LayerStack):
    """Hidden layers over rows [B, ...], which are flattened, and a head: (B, outputs). Without hidden layers it is a
    linear model.

    Several inputs are laid side by side.
    """

    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model as a function, its parameters `hidden/<i>/...` and `head/...`, and its layer state."""
        import jax

        width = self.required_outputs(outputs)
        layers = self.layers()
        *keys, head = jax.random.split(rng, len(self.hidden) + 1)
        features = sum(math.prod(spec.shape) for spec in shapes.values())
        hidden, running, inner = layers.init(keys, features)
        params = {"head": new_dense(head, inner, width)} | ({"hidden": hidden} if hidden else {})
        return _Perceptron(layers), params, {"hidden": running} if running else {}


@dataclass(frozen=True)
class _Perceptron:
    layers: HiddenLayers

    def __call__(self, params: Any, state: Any, *inputs: Any, train: bool, key: Any, **rates: Any) -> Any:
        held = state.get("hidden", {})
        x, running = self.layers(params.get("hidden", {}), held, flat_rows(inputs), train=train, key=key, **rates)
        return logits_of(params["head"], x), {"hidden": running} if running else state
