"""Flax linen modules: variables in collections, rngs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from nitro_cli.errors import HookError
from nitro_cli.programs.models.adapted import AdaptedModel, PyTree
from nitro_cli.programs.models.call_arguments import CallArguments

__all__ = ["LinenModel", "adapt_linen"]


@dataclass(frozen=True, eq=False)
class LinenModel(AdaptedModel):
    """A linen module; its state is the mapping of all collections but `params`."""

    library: ClassVar[str] = "linen"

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
        keywords = dict(keywords or {})
        method = keywords.pop("method", None)
        mode = _free_arguments(self.module, method, inputs, keywords).mode(train)
        variables = {"params": params, **state}
        # With mutable=[...] apply returns a pair even for a module that changes nothing.
        mutable = sorted(state) if train and state else False
        returned = self.module.apply(
            variables, *inputs, rngs=_rngs(key), mutable=mutable, method=method, **{**mode, **keywords}
        )
        if mutable is False:
            return returned, state
        outputs, updated = returned
        return outputs, {**state, **_plain(updated)}


def adapt_linen(module: Any, params: PyTree, state: PyTree) -> LinenModel:
    """Adapt a linen module.

    Args:
        module: the module, not bound.
        params: what `module.init` returned (`{"params": ..., "batch_stats": ...}`), or its `params` alone.
        state: the other collections by name, or None.

    Raises:
        HookError: no variables, or a state that is no mapping of collections.
    """
    if not isinstance(params, Mapping):
        raise HookError(
            f"`build_model` returned the linen module {type(module).__name__} with params of type "
            f"{type(params).__name__}",
            why="linen keeps its variables outside of the module",
            fix="return module, module.init(rng, example), None",
        )
    if state is not None and not isinstance(state, Mapping):
        raise HookError(
            f"the state of the linen module {type(module).__name__} is {type(state).__name__}",
            fix="return the mapping of collections, as in {'batch_stats': ...}, or None",
        )
    params, collections = _unboxed(params), _unboxed(state or {})
    if _is_variables(params):
        collections = {**{name: tree for name, tree in params.items() if name != "params"}, **collections}
        params = params["params"]
    return LinenModel(module, params, collections)


def _is_variables(tree: Mapping[str, Any]) -> bool:
    return "params" in tree and all(isinstance(collection, Mapping) for collection in tree.values())


def _unboxed(tree: Any) -> Any:
    from flax.core import meta  # flax is loaded: the model is a flax module

    return _plain(meta.unbox(tree))


def _plain(tree: Any) -> Any:
    """Plain dicts in place of FrozenDicts."""
    return {name: _plain(node) for name, node in tree.items()} if isinstance(tree, Mapping) else tree


def _rngs(key: jax.Array | None) -> dict[str, jax.Array] | None:
    # A stream that is not given falls back to "params", so that these two serve every name a module asks for.
    return None if key is None else {"dropout": key, "params": jax.random.fold_in(key, 0)}


def _free_arguments(module: Any, method: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> CallArguments:
    call: Callable[..., Any] = module.__call__ if method is None else method
    if isinstance(method, str):
        call = getattr(module, method)
    elif method is not None and not hasattr(method, "__self__"):
        return CallArguments.of(call, (module, *inputs), keywords)
    return CallArguments.of(call, inputs, keywords)
