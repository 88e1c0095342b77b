"""Flax nnx modules: split into graph definition and plain trees, merged again at trace time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nitro_cli.errors import HookError
from nitro_cli.programs.models.adapted import AdaptedModel, PyTree
from nitro_cli.programs.models.call_arguments import CallArguments
from nitro_cli.programs.models.named_leaves import LeafNames, nest, pick

__all__ = ["NnxModel", "adapt_nnx"]


@dataclass(frozen=True)
class _Stream:
    """One leaf of an nnx random stream: what to put in its place at each call."""

    path: tuple[Any, ...]
    is_key: bool
    shape: tuple[int, ...]
    wrapped: bool
    dtype: Any


@dataclass(frozen=True, eq=False)
class NnxModel(AdaptedModel):
    """An nnx module; random streams are no part of its state, they are reseeded from `key` at each call."""

    library: ClassVar[str] = "nnx"

    param_paths: tuple[tuple[Any, ...], ...] = ()
    state_paths: tuple[tuple[Any, ...], ...] = ()
    streams: tuple[_Stream, ...] = ()

    def merge(self, params: PyTree, state: PyTree, key: jax.Array | None = None) -> Any:
        """A live nnx module with these arrays, its random streams seeded from `key`."""
        nnx = sys.modules["flax.nnx"]
        flat = [(path, pick(params, _text(path))) for path in self.param_paths]
        flat += [(path, pick(state, _text(path))) for path in self.state_paths]
        flat += _seeded(self.streams, jax.random.key(0) if key is None else key)
        return nnx.merge(self.module, nnx.from_flat_state(flat))

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
        nnx = sys.modules["flax.nnx"]
        keywords = dict(keywords or {})
        model = self.merge(params, state, key)
        if train:
            model.train()
        else:
            model.eval()
        method = keywords.pop("method", None)
        call = getattr(model, method) if isinstance(method, str) else model
        takes = CallArguments.of(call if call is not model else model.__call__, inputs, keywords)
        extra: dict[str, Any] = takes.mode(train)
        if key is not None and "rngs" in takes.free:
            extra["rngs"] = nnx.Rngs(jax.random.fold_in(key, len(self.streams)))
        outputs = call(*inputs, **{**extra, **keywords})
        return outputs, self._state_of(model) if train else state

    def _state_of(self, model: Any) -> PyTree:
        nnx = sys.modules["flax.nnx"]
        # Sown intermediates come and go with a call; they are no layer state.
        _, _, _, _, rest = nnx.split(model, nnx.Param, nnx.RngState, nnx.Intermediate, ...)
        leaves = _leaves(nnx, rest)
        made = sorted("/".join(_text(path)) for path, _ in leaves if path not in set(self.state_paths))
        if made or len(leaves) != len(self.state_paths):
            lost = sorted({"/".join(_text(p)) for p in self.state_paths} - {"/".join(_text(p)) for p, _ in leaves})
            raise HookError(
                "the nnx model changed its own structure in a call",
                where=", ".join([*(f"made {path}" for path in made), *(f"lost {path}" for path in lost)]),
                why="a compiled step takes and returns one state structure",
                fix="create every Variable in __init__",
            )
        return nest((_text(path), value) for path, value in leaves)


def adapt_nnx(model: Any, params: PyTree, state: PyTree) -> NnxModel:
    """Adapt an nnx module, or the `(graphdef, params, rest)` that `nnx.split` gave.

    Args:
        model: an `nnx.Module` or an `nnx.GraphDef`.
        params: None or empty (the module's own), or values to put in place of its parameters.
        state: the same for everything else.

    Raises:
        HookError: given values do not fit the model's own variables.
    """
    nnx = sys.modules["flax.nnx"]
    if isinstance(model, nnx.GraphDef):
        model = nnx.merge(model, *(tree for tree in (params, state) if tree is not None))
        params = state = None
    graph, own, random, intermediates, rest = nnx.split(model, nnx.Param, nnx.RngState, nnx.Intermediate, ...)
    del intermediates
    param_leaves, state_leaves = _leaves(nnx, own), _leaves(nnx, rest)
    return NnxModel(
        graph,
        _given(nnx, params, param_leaves, "params"),
        _given(nnx, state, state_leaves, "state"),
        param_paths=tuple(path for path, _ in param_leaves),
        state_paths=tuple(path for path, _ in state_leaves),
        streams=tuple(_stream(path, value) for path, value in _leaves(nnx, random)),
    )


def _text(path: Iterable[Any]) -> LeafNames:
    return tuple(str(part) for part in path)


def _leaves(nnx: Any, state: Any) -> list[tuple[tuple[Any, ...], Any]]:
    return [(path, _raw(nnx, leaf)) for path, leaf in nnx.to_flat_state(state)]


def _raw(nnx: Any, leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _given(nnx: Any, tree: PyTree, own: list[tuple[tuple[Any, ...], Any]], what: str) -> dict[str, Any]:
    """The module's own leaves, or the given ones when there are any and they fit."""
    if tree is None or not jax.tree.leaves(tree):
        return nest((_text(path), value) for path, value in own)
    if isinstance(tree, nnx.State):
        tree = nest((_text(path), value) for path, value in _leaves(nnx, tree))
    try:
        return nest((_text(path), pick(tree, _text(path))) for path, _ in own)
    except (KeyError, TypeError) as error:
        raise HookError(
            f"`build_model` returned an nnx model together with {what} that do not fit it",
            why=f"no {error} among the given {what}",
            fix="return the model alone; its variables are read from it",
        ) from None


def _stream(path: tuple[Any, ...], value: Any) -> _Stream:
    wrapped = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    is_key = wrapped or path[-1] == "key"
    shape = tuple(value.shape) if wrapped or not is_key else tuple(value.shape[:-1])
    return _Stream(path, is_key, shape, wrapped, value.dtype)


def _seeded(streams: tuple[_Stream, ...], key: jax.Array) -> list[tuple[tuple[Any, ...], Any]]:
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    leaves: list[tuple[tuple[Any, ...], Any]] = []
    for index, stream in enumerate(streams):
        if not stream.is_key:
            leaves.append((stream.path, jnp.zeros(stream.shape, stream.dtype)))
            continue
        fresh = jax.random.fold_in(typed, index)
        if stream.shape:
            fresh = jax.random.split(fresh, stream.shape)
        leaves.append((stream.path, fresh if stream.wrapped else jax.random.key_data(fresh)))
    return leaves
