"""What a level 2 optimizer builds its chain from, and the decay that ends the chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nitro_cli.errors import OptimizerError

__all__ = ["HyperParams", "UnknownHyperparameter", "decay", "decayed"]


class UnknownHyperparameter(AttributeError):
    """A hyperparameter was read that neither the framework nor a schedule provides."""


class HyperParams(Mapping[str, Any]):
    """The hyperparameters of one group at one step, by attribute or by key.

    Attributes:
        learning_rate: the group's effective rate, f32[].
        weight_decay: the group's decay coefficient, f32[].
        anchor: what the group decays toward: None for zero, else a dict of arrays by path text.
        decay_mask: dict of bool by path text, False where the leaf is excluded from decay.

    Beside these, one entry per scheduled hyperparameter, f32[]; `hp.get("momentum", 0.9)` reads one that may not be
    scheduled.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: Any,
        anchor: Mapping[str, Any] | None,
        decay_mask: Mapping[str, bool],
        scheduled: Mapping[str, Any],
    ) -> None:
        self._values = {
            **scheduled,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "anchor": anchor,
            "decay_mask": decay_mask,
        }
        self._decayed: list[Mapping[str, Any]] = []
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._value(name, UnknownHyperparameter)

    def __getitem__(self, name: str) -> Any:
        return self._value(name, KeyError)

    def _value(self, name: str, missing: type[Exception]) -> Any:
        self._read.add(name)
        if name not in self._values:
            raise missing(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def read_names(self) -> frozenset[str]:
        """Every name that was asked for so far."""
        return frozenset(self._read)

    @property
    def decay_outputs(self) -> tuple[Mapping[str, Any], ...]:
        """What `decay` returned for this object, to check that it came last."""
        return tuple(self._decayed)


def decayed(
    update: jax.Array, weight: jax.Array, learning_rate: Any, weight_decay: Any, anchor: jax.Array | None
) -> jax.Array:
    """`update - lr * weight_decay * (weight - anchor)`; no subtraction is emitted for an anchor of None.

    Decoupled decay as in AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), toward the initial weights as in L2-SP
    (Li, Grandvalet and Davoine 2018, arXiv:1802.01483).
    """
    pull = weight if anchor is None else weight - anchor
    return update - learning_rate * weight_decay * pull


def decay(hp: HyperParams) -> optax.GradientTransformation:
    """The last member of a level 2 chain: decoupled weight decay, scaled by the group's learning rate.

    Adds `-learning_rate * weight_decay * mask * (w - anchor)` to the updates. It follows the learning rate;
    `optax.add_decayed_weights` in its place would grow the weights.

    Args:
        hp: the object that the `optimizer` hook was given.

    Example:
        `optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(hp.learning_rate), decay(hp))`
    """

    def update(
        updates: Mapping[str, Any], state: optax.EmptyState, params: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any], optax.EmptyState]:
        if params is None:
            raise OptimizerError("decay(hp) was updated without params", fix="pass params through the chain")
        result = {
            text: _decay_leaf(hp, text, value, params[text]) if isinstance(value, jax.Array) else value
            for text, value in updates.items()
        }
        hp._decayed.append(result)
        return result, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _decay_leaf(hp: HyperParams, text: str, update: jax.Array, weight: jax.Array) -> jax.Array:
    if not hp["decay_mask"].get(text, True):
        return update
    anchor = None if hp["anchor"] is None else hp["anchor"][text]
    return jnp.asarray(decayed(update, weight, hp["learning_rate"], hp["weight_decay"], anchor))
