"""Finding arrays of a trace that a model kept in itself, where they would be dead after it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax

__all__ = ["held_tracer"]

_DEPTH = 8


def held_tracer(module: Any) -> str | None:
    """Where a model holds an array of the running trace, in words, or None.

    Looks through fields, containers, closures, defaults and partial arguments, a few levels deep.
    """
    place = next(_search(module, (), set(), 0), None)
    if place is None:
        return None
    return f"the model keeps an array made in build_model outside of its parameters ({'.'.join(place) or 'itself'})"


def _search(node: Any, place: tuple[str, ...], seen: set[int], depth: int) -> Iterator[tuple[str, ...]]:
    if isinstance(node, jax.core.Tracer):
        yield place
        return
    if depth > _DEPTH or id(node) in seen:
        return
    seen.add(id(node))
    for name, child in _children(node):
        yield from _search(child, (*place, name), seen, depth + 1)


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        yield from ((str(name), child) for name, child in node.items())
    elif isinstance(node, (list, tuple)):
        yield from ((str(index), child) for index, child in enumerate(node))
    elif isinstance(node, functools.partial):
        yield from (("func", node.func), ("args", node.args), ("keywords", node.keywords))
    elif isinstance(node, types.MethodType):
        yield from (("self", node.__self__), ("func", node.__func__))
    elif isinstance(node, types.FunctionType):
        yield from (("defaults", node.__defaults__), ("keyword defaults", node.__kwdefaults__))
        for name, cell in zip(node.__code__.co_freevars, node.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # a cell not filled yet
                continue
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        yield from ((f.name, getattr(node, f.name, None)) for f in dataclasses.fields(node) if f.name != "parent")
    elif isinstance(getattr(node, "__dict__", None), dict) and not isinstance(node, (type, types.ModuleType)):
        yield from vars(node).items()
