"""Between trees on the device and the flat mapping from path to host array that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import IncompatibleError
from nitro_cli.run.processes import host_array

__all__ = ["flatten", "path_text", "unflatten"]

MISMATCHES_SHOWN = 5


def path_text(path: tuple[Any, ...]) -> str:
    """A pytree path as text: the keys, indices and field names joined by `/`."""
    return "/".join(_key(entry) for entry in path)


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        value = getattr(entry, attribute, None)
        if value is not None:
            return str(value)
    return str(entry)


def flatten(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """Copy a tree's leaves to the host as `{prefix/path: array}`. Blocks until they are computed."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{prefix}/{path_text(path)}".rstrip("/"): host_array(leaf) for path, leaf in leaves}


def unflatten(prefix: str, template: Any, arrays: Mapping[str, np.ndarray], *, source: str, what: str) -> Any:
    """Build a tree like `template` from a record's arrays, exactly as they are.

    Args:
        prefix: the part of the record to read (`params`, `state`, `opt`, `ema`).
        template: a tree of the structure, shapes and dtypes wanted.
        arrays: the record's flat mapping.
        source: where the arrays come from, for the error.
        what: what the tree is called, for the error.

    Raises:
        IncompatibleError: a leaf is missing, is one too many, or has another shape or dtype; the first few are named
            with both sides.
    """
    found, treedef = jax.tree_util.tree_flatten_with_path(template)
    wanted = {f"{prefix}/{path_text(path)}".rstrip("/"): leaf for path, leaf in found}
    held = {name: array for name, array in arrays.items() if name == prefix or name.startswith(prefix + "/")}
    problems: list[str] = []
    for name, leaf in wanted.items():
        want = f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
        if name not in held:
            problems.append(f"{name}: {want} here, not in the checkpoint")
            continue
        array = held[name]
        have = f"{array.dtype}{list(array.shape)}"
        if array.shape != tuple(leaf.shape) or array.dtype != np.dtype(leaf.dtype):
            problems.append(f"{name}: {want} here, {have} in the checkpoint")
    problems += [
        f"{name}: not here, {held[name].dtype}{list(held[name].shape)} in the checkpoint"
        for name in held.keys() - wanted.keys()
    ]
    if problems:
        more = f"\n    ... {len(problems)} leaves in all" if len(problems) > MISMATCHES_SHOWN else ""
        raise IncompatibleError(
            f"the {what} of this experiment and of the checkpoint differ",
            where=source,
            why="\n    ".join(problems[:MISMATCHES_SHOWN]) + more,
            fix="build the experiment with the checkpoint's GraphConst fields, or choose another checkpoint",
        )
    return jax.tree_util.tree_unflatten(treedef, [held[name] for name in wanted])
