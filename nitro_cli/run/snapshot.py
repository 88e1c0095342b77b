"""Between trees on the device and the flat mapping from path to host array that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import ArrayPieces
from nitro_cli.distributed import host_array, in_pieces
from nitro_cli.errors import IncompatibleError
from nitro_cli.text import path_text

__all__ = ["flatten", "named_leaves", "own_pieces", "share_of", "unflatten"]

MISMATCHES_SHOWN = 5


def flatten(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """Copy a tree's leaves to the host as `{prefix/path: array}`. Blocks until they are computed."""
    return {name: host_array(leaf) for name, leaf in named_leaves(prefix, tree).items()}


def named_leaves(prefix: str, tree: Any) -> dict[str, Any]:
    """A tree's leaves as they are, as `{prefix/path: leaf}`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{prefix}/{path_text(path)}".rstrip("/"): leaf for path, leaf in leaves}


def share_of(leaves: Mapping[str, Any]) -> dict[str, np.ndarray | ArrayPieces]:
    """Copy to the host what this process is to write of these leaves: whole ones, and its pieces of the others.

    Nothing is gathered: a process holds no more than its devices do.
    """
    for leaf in leaves.values():
        if in_pieces(leaf):
            for shard in leaf.addressable_shards:
                shard.data.copy_to_host_async()
    return {
        name: own_pieces(leaf, leaf.addressable_shards) if in_pieces(leaf) else host_array(leaf)
        for name, leaf in leaves.items()
    }


def own_pieces(leaf: jax.Array, shards: Iterable[Any]) -> ArrayPieces:
    """The shards of an array that a process writes: of several that hold the same, one process writes the first.

    Args:
        leaf: an array spread over processes.
        shards: those on this process's devices.
    """
    pieces = {}
    for shard in shards:
        if shard.replica_id == 0:
            # On the CPU numpy sees the device's own buffer, which the next step is to reuse.
            on_host = shard.device.platform == "cpu"
            held = np.array(shard.data, copy=True) if on_host else np.asarray(shard.data)
            pieces[tuple(part.start or 0 for part in shard.index)] = held
    return ArrayPieces(tuple(leaf.shape), np.dtype(leaf.dtype), pieces)


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
