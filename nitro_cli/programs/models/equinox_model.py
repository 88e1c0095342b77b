"""Equinox modules: partitioned into plain trees, vmapped over the batch at trace time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nitro_cli.errors import HookError
from nitro_cli.programs.models.adapted import AdaptedModel, PyTree
from nitro_cli.programs.models.call_arguments import CallArguments
from nitro_cli.programs.models.named_leaves import LeafNames, nest, path_names, pick

__all__ = ["EquinoxModel", "adapt_equinox"]

BATCH_AXIS = "batch"


@dataclass(frozen=True)
class _Rebuild:
    """How to put a library's object together again: each leaf is a path into a plain tree, or a constant."""

    treedef: Any
    leaves: tuple[LeafNames | None, ...]
    constants: tuple[Any, ...]

    def __call__(self, tree: Mapping[str, Any]) -> Any:
        leaves = [c if path is None else pick(tree, path) for path, c in zip(self.leaves, self.constants, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)


@dataclass(frozen=True, eq=False)
class EquinoxModel(AdaptedModel):
    """An equinox module called per sample.

    Its params are the inexact arrays by path; its state holds under `layers` the values of `equinox.nn.State` by the
    path of their index, and under `buffers` the module's other arrays.
    """

    library: ClassVar[str] = "equinox"

    rebuild_module: _Rebuild | None = None
    rebuild_state: _Rebuild | None = None

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
        equinox = sys.modules["equinox"]
        assert self.rebuild_module is not None
        module = self.rebuild_module({"params": params, "buffers": state.get("buffers", {})})
        module = equinox.nn.inference_mode(module, value=not train)
        keywords = dict(keywords or {})
        layers = None if self.rebuild_state is None else self.rebuild_state(state["layers"])
        takes = CallArguments.of(module.__call__, inputs, keywords)
        fixed = takes.mode(train)
        keys = None
        if key is not None and "key" in takes.free:
            keys = jax.random.split(key, _batch_size(inputs, keywords))
        elif "key" in takes.required:
            # Code that splits its key does so in inference too, where nothing random is left to use it. A sample's key
            # comes of its place, so that an export may leave the size of the batch open.
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(_batch_size(inputs, keywords)))

        def sample(layers: Any, key: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            extra = {**fixed, **keywords}
            if key is not None:
                extra["key"] = key
            if layers is None:
                return module(*inputs, **extra), None
            returned = (
                module(*inputs, **extra, state=layers) if "state" in takes.free else module(*inputs, layers, **extra)
            )
            return _outputs_and_state(equinox, returned, module)

        mapped = jax.vmap(
            sample,
            in_axes=(None, None if keys is None else 0, _axes(inputs), _axes(keywords)),
            out_axes=(0, None),
            axis_name=BATCH_AXIS,
        )
        outputs, new_layers = mapped(layers, keys, inputs, keywords)
        if layers is None or not train:
            return outputs, state
        return outputs, {**state, "layers": self._named_layers(new_layers)}

    def _named_layers(self, layers: Any) -> dict[str, Any]:
        assert self.rebuild_state is not None
        pairs = zip(self.rebuild_state.leaves, jax.tree.leaves(layers), strict=True)
        return nest((path, leaf) for path, leaf in pairs if path is not None)


def adapt_equinox(module: Any, params: PyTree, state: PyTree) -> EquinoxModel:
    """Adapt an equinox module.

    Args:
        module: the module, or the static half of `equinox.partition`.
        params: None or empty, or the array half of `equinox.partition` / `equinox.filter`.
        state: None or empty, or the `equinox.nn.State` of `equinox.nn.make_with_state`.

    Raises:
        HookError: the params are no such half, or the state is not an `equinox.nn.State`.
    """
    equinox = sys.modules["equinox"]
    if params is not None and jax.tree.leaves(params):
        if not isinstance(params, type(module)):
            raise HookError(
                f"`build_model` returned an equinox module together with params of type {type(params).__name__}",
                why="an equinox module carries its own parameters",
                fix="return module, None, state",
            )
        module = equinox.combine(params, module)
    if state is not None and not isinstance(state, equinox.nn.State):
        if jax.tree.leaves(state):
            raise HookError(
                f"the state of an equinox module is {type(state).__name__}",
                why="layer state must be an equinox.nn.State",
                fix="model, state = equinox.nn.make_with_state(Model)(...); return model, None, state",
            )
        state = None
    rebuild_module, trees = _take_apart(equinox, module)
    layers: dict[str, Any] = {}
    rebuild_state = None
    if state is not None and jax.tree.leaves(state):
        rebuild_state, layers = _take_state_apart(equinox, module, state)
    named = {"layers": layers, "buffers": trees["buffers"]}
    return EquinoxModel(
        equinox.filter(module, equinox.is_array, inverse=True),  # holding no array, it can leak no tracer
        trees["params"],
        {name: tree for name, tree in named.items() if tree},
        rebuild_module=rebuild_module,
        rebuild_state=rebuild_state,
    )


def _take_apart(equinox: Any, module: Any) -> tuple[_Rebuild, dict[str, dict[str, Any]]]:
    flat, treedef = jax.tree_util.tree_flatten_with_path(module)
    paths: list[LeafNames | None] = []
    constants: list[Any] = []
    found: dict[str, list[tuple[LeafNames, Any]]] = {"params": [], "buffers": []}
    for path, leaf in flat:
        if not equinox.is_array(leaf):
            paths.append(None)
            constants.append(leaf)
            continue
        kind = "params" if equinox.is_inexact_array(leaf) else "buffers"
        name = path_names(path)
        found[kind].append((name, leaf))
        paths.append((kind, *name))
        constants.append(None)
    return _Rebuild(treedef, tuple(paths), tuple(constants)), {kind: nest(pairs) for kind, pairs in found.items()}


def _take_state_apart(equinox: Any, module: Any, state: Any) -> tuple[_Rebuild, dict[str, Any]]:
    """Name each leaf of an `equinox.nn.State` after the index in the module that owns it."""
    values, treedef = jax.tree.flatten(state)
    numbered = jax.tree.unflatten(treedef, range(len(values)))
    names: list[LeafNames] = [("unnamed", str(position)) for position in range(len(values))]
    is_index = lambda leaf: isinstance(leaf, equinox.nn.StateIndex)  # noqa: E731
    for path, leaf in jax.tree_util.tree_flatten_with_path(module, is_leaf=is_index)[0]:
        if is_index(leaf):
            for inner, position in jax.tree_util.tree_flatten_with_path(numbered.get(leaf))[0]:
                names[position] = (*path_names(path), *path_names(inner))
    rebuild = _Rebuild(treedef, tuple(names), (None,) * len(values))
    return rebuild, nest(zip(names, values, strict=True))


def _outputs_and_state(equinox: Any, returned: Any, module: Any) -> tuple[Any, Any]:
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], equinox.nn.State):
        return returned
    raise HookError(
        f"the equinox module {type(module).__name__} returned {type(returned).__name__}",
        why="a module with layer state must return (outputs, state)",
        fix="thread the state through the module's call and return it second",
    )


def _axes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, tree)


def _batch_size(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The size of the batch: a number, or the symbol of an export for any size."""
    for leaf in jax.tree.leaves((inputs, keywords)):
        if jnp.ndim(leaf):
            return jnp.shape(leaf)[0]
    raise HookError("the model was called without a batch", fix="pass the batch's arrays: model(params, state, image)")
