"""The one form that every model takes, and what `forward` receives as `model`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax

__all__ = ["AdaptedModel", "BoundModel"]

PyTree = Any


@dataclass(frozen=True, eq=False)
class AdaptedModel(abc.ABC):
    """A model of some library behind one call.

    Attributes:
        module: what the user built: the linen or equinox module, the nnx graph definition, or the function.
        params: trainable arrays as a pytree; None once `without_arrays` took them out.
        state: layer state (running statistics and the like) as a pytree; `{}` for a model that has none.
    """

    library: ClassVar[str]

    module: Any
    params: PyTree
    state: PyTree

    @abc.abstractmethod
    def apply(
        self,
        params: PyTree,
        state: PyTree,
        inputs: tuple[Any, ...],
        *,
        train: bool,
        key: jax.Array | None,
        keywords: Mapping[str, Any] | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Call the model on a batch.

        Args:
            params: a tree like `self.params`.
            state: a tree like `self.state`.
            inputs: positional inputs, batch dimension first.
            train: train mode (dropout on, batch statistics, state updated) or evaluation mode.
            key: the random key of this call; None gives the model no randomness.
            keywords: keyword inputs of the model's own call.

        Returns:
            `(outputs, new_state)`; in evaluation mode `new_state` is `state`.

        Raises:
            HookError: the model returned something that cannot be taken apart.
        """

    def without_arrays(self) -> Self:
        """The same model holding no arrays, so that it does not keep the initial parameters alive."""
        return dataclasses.replace(self, params=None, state=None)


class BoundModel:
    """A model with its mode and its random key: the `model` argument of `forward`.

    `model(params, state, *inputs)` gives `(outputs, new_state)`. Where a forward calls its model more than once, each
    call draws its own randomness: the first with `key`, the n-th with `key` folded with n - 1.

    Args:
        adapted: the model.
        train: train or evaluation mode.
        key: the random key of this micro-batch, or None.
    """

    def __init__(self, adapted: AdaptedModel, train: bool, key: jax.Array | None = None) -> None:
        self._adapted = adapted
        self._calls = 0
        self.train = train
        self.key = key

    @property
    def module(self) -> Any:
        """What `build_model` returned as model (for nnx its graph definition)."""
        return self._adapted.module

    @property
    def library(self) -> str:
        """`linen`, `nnx`, `equinox` or `function`."""
        return self._adapted.library

    def __call__(self, params: PyTree, state: PyTree, *inputs: Any, **keywords: Any) -> tuple[PyTree, PyTree]:
        """Call the model; see `AdaptedModel.apply`."""
        key = self.key
        if key is not None and self._calls:
            key = jax.random.fold_in(key, self._calls)
        self._calls += 1
        return self._adapted.apply(params, state, inputs, train=self.train, key=key, keywords=keywords)

    def __repr__(self) -> str:
        mode = "train" if self.train else "eval"
        return f"BoundModel({self.library}, {mode})"
