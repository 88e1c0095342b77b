"""Trees as plain nested dicts with text keys, so that names and structures never hang on a library's classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nitro_cli.text import path_keys

__all__ = ["LeafNames", "nest", "path_names", "pick"]

LeafNames = tuple[str, ...]


def path_names(path: Iterable[Any]) -> LeafNames:
    """The keys of a JAX key path as text."""
    return tuple(map(str, path_keys(path)))


def nest(leaves: Iterable[tuple[LeafNames, Any]]) -> dict[str, Any]:
    """Nested dicts out of `(path, leaf)` pairs, keys sorted at each level.

    Raises:
        ValueError: two leaves have one path, or one path runs through another's leaf.
    """
    root: dict[str, Any] = {}
    placed: set[LeafNames] = set()
    for path, leaf in sorted(leaves, key=lambda pair: pair[0]):
        node = root
        for depth, name in enumerate(path[:-1], start=1):
            if path[:depth] in placed:
                raise ValueError(f"leaf inside a leaf at {'/'.join(path)}")
            node = node.setdefault(name, {})
        if path in placed or path[-1] in node:
            raise ValueError(f"two leaves at {'/'.join(path)}")
        placed.add(path)
        node[path[-1]] = leaf
    return root


def pick(tree: Mapping[str, Any], path: LeafNames) -> Any:
    """The subtree of nested dicts at `path`.

    Raises:
        KeyError: there is none.
    """
    node: Any = tree
    for name in path:
        node = node[name]
    return node
