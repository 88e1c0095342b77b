"""Taking apart what the traced hooks return, with an error that says what was wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import HookError
from nitro_cli.text import path_text

__all__ = ["scalars", "split_loss", "split_step"]

PyTree = Any

SHOWN = 3
"""How many leaves an error names."""


def split_loss(returned: Any, hook: str = "loss") -> tuple[jax.Array, dict[str, jax.Array]]:
    """Take a loss hook's return apart into the scalar and its named terms.

    Raises:
        HookError: the loss or a term is not a scalar, or the return is neither form.
    """
    loss, terms = returned, {}
    if isinstance(returned, tuple):
        if len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise HookError(
                f"`{hook}` returned a tuple of {len(returned)}",
                why="a loss is a scalar, or a pair of the scalar and a mapping of its terms",
                fix="return loss, or (loss, {'term': value})",
            )
        loss, terms = returned[0], dict(returned[1])
    for name, value in {"": loss, **terms}.items():
        if jnp.shape(value) != ():
            what = f"term {name!r} of `{hook}`" if name else f"`{hook}`"
            raise HookError(
                f"{what} has shape {jnp.shape(value)}, a scalar is wanted",
                fix="take the mean over the batch: jnp.mean(...)",
            )
    return jnp.asarray(loss), {name: jnp.asarray(value) for name, value in terms.items()}


def scalars(returned: Any, hook: str, taken: Collection[str] = ("loss",)) -> dict[str, jax.Array]:
    """The numbers that a hook returned for the train lines.

    Args:
        returned: a mapping of names to scalars.
        hook: what returned it, for errors.
        taken: names the step's line has already.

    Raises:
        HookError: it is no mapping, an entry is not a scalar, or a name is taken.
    """
    if not isinstance(returned, Mapping):
        raise HookError(
            f"`{hook}` returned {type(returned).__name__}", fix="return a mapping of names to scalars, {} for none"
        )
    for name, value in returned.items():
        if jnp.shape(value) != ():
            raise HookError(
                f"`{hook}` entry {name!r} has shape {jnp.shape(value)}, a scalar is wanted",
                fix="reduce it: jnp.mean(...)",
            )
        if name in taken:
            raise HookError(
                f"`{hook}` entry {name!r} has the name of a number that the train line has already",
                why=f"the framework logs {', '.join(sorted(taken))} itself",
                fix="rename the entry",
            )
    return {str(name): jnp.asarray(value) for name, value in returned.items()}


def split_step(returned: Any, params: PyTree, state: PyTree, opt_state: PyTree) -> tuple[Any, ...]:
    """Check what a `train_step` hook returned against the trees that it was given.

    Returns:
        `(loss, params, state, opt_state, numbers)`, the loss a scalar, the numbers those of its stats.

    Raises:
        HookError: it is not five values, the loss or a stat is not a scalar, or a tree has another structure, shape or
            dtype than the one given, so that the next step would need another program.
    """
    if not isinstance(returned, tuple) or len(returned) != 5:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise HookError(
            f"`train_step` returned {type(returned).__name__}{size}",
            why="it must return loss, params, state, opt_state, stats",
            fix="return loss, params, state, opt_state, {}",
        )
    loss, _ = split_loss(returned[0], "train_step")
    for name, given, new in zip(
        ("params", "state", "opt_state"), (params, state, opt_state), returned[1:4], strict=True
    ):
        _check_same(name, given, new)
    return loss, *returned[1:4], scalars(returned[4], "train_step stats")


def _check_same(name: str, given: PyTree, new: PyTree) -> None:
    before: Any = jax.tree.structure(given)
    after: Any = jax.tree.structure(new)
    if before != after:
        raise HookError(
            f"`train_step` returned another structure of {name}",
            why=f"given {before}, returned {after}",
            fix="return loss, params, state, opt_state, stats, the trees as they were given, with new values",
        )
    leaves = zip(jax.tree_util.tree_flatten_with_path(given)[0], jax.tree.leaves(new), strict=True)
    kinds = [(path, _described(old), _described(leaf)) for (path, old), leaf in leaves]
    changed = [f"{path_text(path)}: given {old}, returned {leaf}" for path, old, leaf in kinds if old != leaf]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise HookError(
            f"`train_step` returned {name} of another shape or dtype",
            why="; ".join(changed[:SHOWN]) + more,
            fix="keep both: optax.apply_updates casts to the parameters' dtype, .astype(old.dtype) does it by hand",
        )


def _described(leaf: Any) -> str:
    return f"{jnp.result_type(leaf).name}{list(jnp.shape(leaf))}"
