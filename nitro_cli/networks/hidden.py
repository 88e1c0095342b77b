"""Hidden layers one behind the other: what mlp is, and what stands behind the blocks of conv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.experiment import Device
from nitro_cli.networks.layers import (
    Activation,
    Norm,
    activation,
    dense,
    dropped,
    new_dense,
    new_norm,
    norm_of,
    tap,
)
from nitro_cli.networks.network import Network

__all__ = ["HiddenLayers", "LayerStack", "Rate", "Width"]

Width = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]


class LayerStack(Network):
    """A network with hidden layers: their widths, activations, norm and dropout."""

    hidden: tuple[Width, ...] = ()
    """The widths of the hidden layers."""

    activation: Activation = "leaky_relu"
    """What follows each of them."""

    activations: tuple[Activation, ...] | None = None
    """One for each hidden layer, in the place of `activation`."""

    norm: Norm = "none"
    """What stands before each activation: `layer`, or `batch`, which has layer state."""

    dropout: Device[Rate | None] = None
    """The share of each hidden layer that is dropped in training; unset, no mask is drawn."""

    dropouts: Device[tuple[Rate, ...] | None] = None
    """One for each hidden layer, in the place of `dropout`."""

    @model_validator(mode="after")
    def _check_lists(self) -> Self:
        for field in ("activations", "dropouts"):
            given = getattr(self, field)
            if given is not None and len(given) != len(self.hidden):
                told = f"{field} has {len(given)} entries, and hidden has {len(self.hidden)} layers"
                raise PydanticCustomError("network", "{told}", {"told": told})
        if self.dropout is not None and self.dropouts is not None:
            raise PydanticCustomError("network", "dropout and dropouts are both given")
        return self

    def layers(self) -> HiddenLayers:
        """Its hidden layers."""
        return HiddenLayers(self.hidden, self.activations or (self.activation,) * len(self.hidden), self.norm)


@dataclass(frozen=True)
class HiddenLayers:
    """Dense, norm, activation, dropout, as often as there are widths.

    Attributes:
        widths: of the layers.
        activations: their names, one for each.
        norm: `none`, `layer` or `batch`.
    """

    widths: tuple[int, ...]
    activations: Sequence[str]
    norm: str = "none"

    def init(self, keys: Sequence[Any], inner: int) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Parameters and layer state of `hidden/0` and on, and the width of the last.

        Args:
            keys: one for each layer.
            inner: the features that come in.
        """
        params: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for number, (key, width) in enumerate(zip(keys, self.widths, strict=True)):
            norm, running = new_norm(self.norm, width)
            params[str(number)] = new_dense(key, inner, width) | ({"norm": norm} if norm else {})
            if running:
                state[str(number)] = {"norm": running}
            inner = width
        return params, state, inner

    def __call__(
        self,
        params: Mapping[str, Any],
        state: Mapping[str, Any],
        x: Any,
        *,
        train: bool,
        key: Any,
        dropout: Any = None,
        dropouts: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """What the last layer gives for x f32[B, ..., features], and the layer state after it."""
        import jax

        moved: dict[str, Any] = {}
        for number, name in enumerate(self.activations):
            own, place = params[str(number)], str(number)
            x = dense(own, x)
            if self.norm != "none":
                running = state.get(place, {}).get("norm", {})
                x, running = norm_of(self.norm, own["norm"], running, x, train)
                moved |= {place: {"norm": running}} if running else {}
            x = tap(f"hidden/{number}", activation(name)(x))
            rate = dropout if dropouts is None else dropouts[number]
            if train and key is not None and rate is not None:
                x = dropped(x, rate, jax.random.fold_in(key, number))
        return x, moved
