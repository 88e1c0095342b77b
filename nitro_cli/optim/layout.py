"""Which parameter group every leaf belongs to, and what applies to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import OptimizerError
from nitro_cli.experiment import HookTable
from nitro_cli.optim.by_name import Optim
from nitro_cli.text import path_keys, path_text

__all__ = ["DEFAULT_GROUP", "FROZEN_GROUP", "ParamLayout", "ParamLeaf", "build_layout"]

DEFAULT_GROUP = "default"
FROZEN_GROUP = "frozen"
RESERVED_GROUPS = ("opt", "device", "grad", "bind")


@dataclass(frozen=True)
class ParamLeaf:
    """One array of the parameter tree.

    Attributes:
        path: keys from the root, strings and integers.
        text: the path joined with `/`.
        shape, dtype: of the array.
        group: parameter group; `"frozen"` trains nothing.
        decays: whether weight decay applies.
        perturbs: whether a perturbing gradient rule moves it.
        adaptive: whether ASAM scales its perturbation by its own size.
    """

    path: tuple[str | int, ...]
    text: str
    shape: tuple[int, ...]
    dtype: Any
    group: str
    decays: bool
    perturbs: bool
    adaptive: bool

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ParamLayout:
    """The leaves of a parameter tree in tree order, and the groups that train.

    Attributes:
        leaves: every leaf, frozen ones included.
        groups: the groups with trained leaves: `default` first, the others as they first appear.
    """

    leaves: tuple[ParamLeaf, ...]
    groups: tuple[str, ...]

    @property
    def frozen(self) -> tuple[ParamLeaf, ...]:
        """The leaves that train nothing."""
        return self.of_group(FROZEN_GROUP)

    @property
    def trained(self) -> tuple[ParamLeaf, ...]:
        """The leaves of every group but `frozen`."""
        return tuple(leaf for leaf in self.leaves if leaf.group != FROZEN_GROUP)

    def of_group(self, group: str) -> tuple[ParamLeaf, ...]:
        """The leaves of `group` in tree order."""
        return tuple(leaf for leaf in self.leaves if leaf.group == group)

    def flatten(self, tree: Any) -> dict[str, Any]:
        """The leaves of a tree shaped like the parameters, by path text; an entry may be None."""
        values = jax.tree.leaves(tree, is_leaf=lambda x: x is None)
        if len(values) != len(self.leaves):
            raise OptimizerError(
                f"a tree of {len(values)} leaves was given for parameters of {len(self.leaves)}",
                why="gradients, parameters and averages share the structure of the parameters",
            )
        return {leaf.text: value for leaf, value in zip(self.leaves, values, strict=True)}

    def unflatten(self, flat: Mapping[str, Any], like: Any) -> Any:
        """A tree of the structure of `like` from values by path text."""
        structure = jax.tree.structure(like)
        return jax.tree.unflatten(structure, [flat[leaf.text] for leaf in self.leaves])


def build_layout(e: Any, params: Any) -> ParamLayout:
    """Ask the experiment's per-leaf hooks once about every leaf of `params`.

    Args:
        e: the experiment; `param_group`, `no_decay`, `no_perturb` and `adaptive_perturb` are called.
        params: pytree of arrays.

    Raises:
        OptimizerError: two leaves share a path text, a group is not a name, a leaf that would train is not of a
            floating or complex dtype, nothing trains, or a row of `Optim` matches no leaf.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    hooks = HookTable(e)
    leaves: list[ParamLeaf] = []
    seen: set[str] = set()
    for entries, array in flat:
        leaf = _leaf(hooks, e, path_keys(entries), array)
        if leaf.text in seen:
            raise OptimizerError(
                f"two parameters share the path {leaf.text!r}",
                why="optimizer state and checkpoints address parameters by this text",
                fix="rename one of them in the model",
            )
        seen.add(leaf.text)
        leaves.append(leaf)
    supplier = getattr(hooks.bound(e, "param_group"), "__self__", None)
    if isinstance(supplier, Optim):
        supplier.check_paths([leaf.text for leaf in leaves])
    found = dict.fromkeys(leaf.group for leaf in leaves if leaf.group != FROZEN_GROUP)
    if not found:
        raise OptimizerError(
            "no parameter trains",
            why=f"all {len(leaves)} leaves are in the group {FROZEN_GROUP!r}" if leaves else "the model has none",
            fix="let param_group name another group for the leaves that train",
        )
    groups = sorted(found, key=lambda g: g != DEFAULT_GROUP)
    return ParamLayout(tuple(leaves), tuple(groups))


def _leaf(hooks: HookTable, e: Any, path: tuple[str | int, ...], array: Any) -> ParamLeaf:
    text = path_text(path)
    group = hooks.call(e, "param_group", path)
    if not isinstance(group, str) or not group or "/" in group or group in RESERVED_GROUPS:
        raise OptimizerError(
            f"param_group returned {group!r}",
            where=f"parameter {text}",
            why=f"a group is a non-empty name without '/', and none of {', '.join(RESERVED_GROUPS)}",
            fix="return a string such as 'default', 'backbone' or 'frozen'",
        )
    if group != FROZEN_GROUP and not jnp.issubdtype(array.dtype, jnp.inexact):
        raise OptimizerError(
            f"parameter {text} has dtype {array.dtype} and cannot be trained",
            why="only floating and complex arrays have a gradient",
            fix=f"keep it in the layer state, or put it into the group {FROZEN_GROUP!r}",
        )
    return ParamLeaf(
        path=path,
        text=text,
        shape=tuple(array.shape),
        dtype=array.dtype,
        group=str(group),
        decays=not _answer(hooks, e, "no_decay", path, array),
        perturbs=group != FROZEN_GROUP and not _answer(hooks, e, "no_perturb", path, array),
        adaptive=_answer(hooks, e, "adaptive_perturb", path, array),
    )


def _answer(hooks: HookTable, e: Any, hook: str, path: tuple[str | int, ...], array: Any) -> bool:
    value = hooks.call(e, hook, path, array)
    if isinstance(value, bool) or (getattr(value, "shape", None) == () and str(value.dtype) == "bool"):
        return bool(value)
    raise OptimizerError(
        f"{hook} returned {type(value).__name__}",
        where=f"parameter {path_text(path)}",
        why="it answers for the whole leaf",
        fix="return True or False",
    )
