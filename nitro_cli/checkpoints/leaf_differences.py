"""In which leaves two trees differ, by path, dtype and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["tree_difference"]


def tree_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Describe the leaves that are in one tree only, or have another dtype or shape; empty when the trees match.

    Args:
        one, other: path text to anything with `dtype` and `shape` (arrays, `LeafSpec`, `jax.ShapeDtypeStruct`), or a
            Python value.

    Returns:
        One text per leaf, such as `params/w: float32[3, 4] and float32[3, 8]`, by path.
    """
    lines = []
    for path in sorted(one.keys() | other.keys()):
        sides = [_described(tree, path) for tree in (one, other)]
        if sides[0] != sides[1]:
            lines.append(f"{path}: {sides[0]} and {sides[1]}")
    return lines


def _described(tree: Mapping[str, Any], path: str) -> str:
    if path not in tree:
        return "absent"
    leaf = tree[path]
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}{list(leaf.shape)}"
