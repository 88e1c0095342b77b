"""What each group's decay pulls toward."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import OptimizerError, nearest
from nitro_cli.optim.group_rates import ask_hook
from nitro_cli.optim.layout import ParamLayout, ParamLeaf
from nitro_cli.text import path_text

__all__ = ["anchor_arrays", "anchor_checksums", "anchored_groups"]


def anchored_groups(e: Any, layout: ParamLayout) -> dict[str, Any]:
    """The groups that decay toward something else than zero, each with `"w0"` or the tree its hook gave.

    Raises:
        OptimizerError: `decay_anchor` returned text that names no anchor, or speaks of a group that no leaf is in.
    """
    found: dict[str, Any] = {}
    for group in layout.groups:
        anchor = ask_hook(e, "decay_anchor", group, layout.groups)
        if isinstance(anchor, str):
            if anchor not in ("zero", "w0"):
                raise OptimizerError(
                    f"decay_anchor({group!r}) is {anchor!r}",
                    why="an anchor is 'zero', 'w0' (the parameters as build_model returned them) or a tree of arrays",
                    nearest=nearest(anchor, ("zero", "w0")),
                )
            if anchor == "zero":
                continue
        elif anchor is None:
            raise OptimizerError(f"decay_anchor({group!r}) is None", fix="return 'zero' for ordinary decay")
        found[group] = anchor
    return found


def anchor_arrays(anchored: Mapping[str, Any], layout: ParamLayout, w0: Any) -> dict[str, dict[str, Any]]:
    """The anchors of the leaves that decay: by group, then by path text, in the parameters' dtypes.

    Args:
        anchored: of `anchored_groups`.
        layout: of the parameters.
        w0: the parameters as `build_model` returned them, or the tree that stands for them.

    Raises:
        OptimizerError: a tree lacks a leaf of its group, holds one that is no parameter, or one of another shape.
    """
    arrays: dict[str, dict[str, Any]] = {}
    for group, anchor in anchored.items():
        flat = layout.flatten(w0) if isinstance(anchor, str) else _by_text(anchor, group, layout)
        arrays[group] = {leaf.text: _fitting(flat, leaf, group) for leaf in layout.of_group(group) if leaf.decays}
    return arrays


def _by_text(tree: Any, group: str, layout: ParamLayout) -> dict[str, Any]:
    entries, _ = jax.tree_util.tree_flatten_with_path(tree)
    flat = {path_text(path): array for path, array in entries}
    known = [leaf.text for leaf in layout.leaves]
    for text in flat:
        if text not in known:
            raise OptimizerError(
                f"the anchor has a leaf {text!r}, which is no parameter",
                where=f"decay_anchor({group!r})",
                fix="return a tree with the paths of the parameters",
                nearest=nearest(text, known),
            )
    return flat


def _fitting(flat: Mapping[str, Any], leaf: ParamLeaf, group: str) -> Any:
    if leaf.text not in flat:
        raise OptimizerError(
            f"the anchor has no leaf {leaf.text!r}",
            where=f"decay_anchor({group!r})",
            why="every parameter of the group that decays needs one",
            fix="add it, or exclude the parameter with no_decay",
        )
    array = flat[leaf.text]
    if tuple(np.shape(array)) != leaf.shape:
        raise OptimizerError(
            f"the anchor's leaf {leaf.text!r} has shape {tuple(np.shape(array))}, the parameter {leaf.shape}",
            where=f"decay_anchor({group!r})",
        )
    return array if getattr(array, "dtype", None) == leaf.dtype else np.asarray(array).astype(leaf.dtype)


def anchor_checksums(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """SHA-256 per anchored group over the paths, dtypes, shapes and bytes of its anchors, as hexadecimal text."""
    sums: dict[str, str] = {}
    for group, flat in arrays.items():
        digest = hashlib.sha256()
        for text in sorted(flat):
            array = np.ascontiguousarray(np.asarray(flat[text]))
            digest.update(f"{text}|{array.dtype.name}|{np.shape(flat[text])}|".encode())
            digest.update(array.tobytes())
        sums[group] = digest.hexdigest()
    return sums
