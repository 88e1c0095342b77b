"""Recognising a model's library, and what `build_model` returned."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import HookError
from nitro_cli.programs.models.adapted import AdaptedModel, PyTree
from nitro_cli.text import path_text

__all__ = ["adapt_model", "adapt_returned"]

_ACCEPTED = "a flax linen module, a flax nnx module, an equinox module, or a function f(params, state, *inputs)"


def adapt_model(model: Any, params: PyTree = None, state: PyTree = None) -> AdaptedModel:
    """Give a model of any library the one form of `AdaptedModel`.

    Args:
        model: a linen module, an nnx module or graph definition, an equinox module, or a function.
        params: its parameters; None for nnx and equinox, whose modules carry them.
        state: its layer state, or None.

    Raises:
        HookError: the model is of no known kind, or params or state do not fit it.
    """
    adapted = _adapt(model, params, state)
    _check_arrays(adapted.params, "params")
    _check_arrays(adapted.state, "state")
    return adapted


def adapt_returned(returned: Any) -> AdaptedModel:
    """Adapt what `build_model` returned: `(model, params, state)`, `(model, params)`, or the model alone.

    Two values that are an equinox module and its `equinox.nn.State` are taken as such.

    Raises:
        HookError: as `adapt_model`, or a tuple of another length.
    """
    if isinstance(returned, AdaptedModel):
        return returned
    if not isinstance(returned, tuple):
        return adapt_model(returned)
    if len(returned) not in (1, 2, 3):
        raise HookError(
            f"`build_model` returned a tuple of {len(returned)}",
            why="it must return the model, its parameters and its layer state",
            fix="return model, params, state",
        )
    model, *trees = returned
    equinox = sys.modules.get("equinox")
    if len(trees) == 1 and equinox is not None and isinstance(trees[0], equinox.nn.State):
        trees = [None, trees[0]]
    return adapt_model(model, *trees)


def _adapt(model: Any, params: PyTree, state: PyTree) -> AdaptedModel:
    # A library that is not loaded cannot have made the model, so none is imported to find out.
    nnx, linen, equinox = (sys.modules.get(name) for name in ("flax.nnx", "flax.linen", "equinox"))
    if nnx is not None and isinstance(model, (nnx.Module, nnx.GraphDef)):
        from nitro_cli.programs.models.nnx_model import adapt_nnx

        return adapt_nnx(model, params, state)
    if linen is not None and isinstance(model, linen.Module):
        from nitro_cli.programs.models.linen_model import adapt_linen

        return adapt_linen(model, params, state)
    if equinox is not None and isinstance(model, equinox.Module):
        from nitro_cli.programs.models.equinox_model import adapt_equinox

        return adapt_equinox(model, params, state)
    if callable(model) and not isinstance(model, type):
        from nitro_cli.programs.models.function_model import adapt_function

        return adapt_function(model, params, state)
    if isinstance(model, type):
        raise HookError(
            f"`build_model` returned the class {model.__name__}, not a model",
            why=f"a model is {_ACCEPTED}",
            fix=f"return an instance: {model.__name__}(...)",
        )
    raise HookError(
        f"`build_model` returned a model of type {type(model).__module__}.{type(model).__qualname__}",
        why="its library is not known",
        fix=f"return {_ACCEPTED}",
    )


def _check_arrays(tree: PyTree, what: str) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if _is_array(leaf):
            continue
        raise HookError(
            f"a leaf of the model's {what} is no array",
            where=path_text((what, *path)),
            why=f"it is {type(leaf).__name__}" + (f" of dtype {leaf.dtype}" if isinstance(leaf, np.ndarray) else ""),
            fix="keep only arrays there; settings belong in the model",
        )


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biufcV"  # V: the small floats of ml_dtypes, bfloat16 among them
    return isinstance(leaf, (jax.Array, np.generic, bool, int, float, complex))
