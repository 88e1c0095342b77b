"""One configuration built up layer by layer, each value keeping its origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from nitro_cli.registry.origins import Origin
from nitro_cli.registry.problems import WrittenProblem
from nitro_cli.registry.toml_text import KeyPath, format_key_path
from nitro_cli.registry.toml_values import NotWritable, natural_form

__all__ = ["SCHEDULES", "Layers", "schedule_paths"]

SCHEDULES = "schedules"
_QUALIFIERS = {"opt": 3, "grad": 2, "device": 2, "bind": 2}
"""Schedule keys may start with one of these, followed by this many segments at most in all."""


def _is_schedule(node: Any) -> bool:
    return not isinstance(node, Mapping) or "kind" in node


def _most_segments(path: Sequence[str], parts: Collection[str]) -> float:
    """How many segments a schedule key has at most, told by its first ones."""
    inside = path[1:2] if path[0] == "device" else path[:1]
    return math.inf if any(name in parts for name in inside) else _QUALIFIERS.get(path[0], 1)


def _nested_schedules(table: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """Spread keys such as `"opt.bias.learning_rate"` over tables, the form that dotted TOML keys have."""
    nested: dict[str, Any] = {}
    for key, value in table.items():
        first, *rest = key.split(".")
        segments = [first, *rest] if first in _QUALIFIERS or first in parts else [key]
        node = nested
        for segment in segments[:-1]:
            inner = node.setdefault(segment, {})
            if not isinstance(inner, dict):
                inner = node[segment] = {}
            node = inner
        node[segments[-1]] = deepcopy(value)
    return nested


def schedule_paths(nested: Mapping[str, Any], parts: Collection[str] = ()) -> dict[str, tuple[KeyPath, Any]]:
    """Read a schedules table as one entry per schedule key.

    `opt.<key>`, `opt.<group>.<key>`, `grad.<key>`, `device.<key>`, `bind.<key>` and what lies in a part, such as
    `task.label_smoothing`, may be written as dotted TOML keys or quoted ones.

    Args:
        nested: the table.
        parts: the fields that hold parts.

    Returns:
        Per key the key path inside the nested table, and the schedule: a number or a table.
    """
    flat: dict[str, tuple[KeyPath, Any]] = {}

    def descend(path: tuple[str, ...], node: Any) -> None:
        if len(path) >= _most_segments(path, parts) or (_is_schedule(node) and len(path) > 1):
            flat[".".join(path)] = (path, node)
        elif isinstance(node, Mapping):
            for key, inner in node.items():
                descend((*path, key), inner)
        else:
            flat[".".join(path)] = (path, node)

    for key, node in nested.items():
        descend((key,), node)
    return flat


def _part_called(name: str | int, parts: list[Any]) -> dict[str, Any] | None:
    """The table of a list of parts that is named so: by its `kind`, `id` or `name`."""
    tables = (table for table in parts if isinstance(table, dict))
    return next((table for table in tables if name in (table.get("kind"), table.get("id"), table.get("name"))), None)


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


@dataclass
class Layers:
    """Values being resolved, weakest layer first.

    Attributes:
        default: gives a field's class default (None when it has none) for building a table from it.
        names: the experiment's fields.
        parts: those that hold parts.
        fields: the values set so far.
        schedules: the schedules table in nested form, None when no layer has one.
        origins: where each key path was set; the longest written prefix counts.
        problems: what could not be applied.
    """

    default: Callable[[str], Any]
    names: Sequence[str]
    parts: Collection[str] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    schedules: dict[str, Any] | None = None
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[WrittenProblem] = field(default_factory=list)

    def put(self, path: KeyPath, value: Any, origin: Origin, inner: Mapping[KeyPath, Origin] | None = None) -> None:
        """Set the value at a key path, replacing what is there whole.

        Args:
            path: a field's name or `schedules`, and the keys inside it.
            value: the value; None is none.
            origin: where it was written.
            inner: origins of the keys inside the value, by their whole key paths.
        """
        if path == (SCHEDULES,):
            self.schedules = None if value is None else _nested_schedules(value, self.parts)
        elif len(path) == 1:
            self.fields[str(path[0])] = value
        elif not self._put_inside(path, value, origin):
            return
        self._forget(path)
        self.origins[path] = origin
        self.origins.update(inner or {})

    def _put_inside(self, path: KeyPath, value: Any, origin: Origin) -> bool:
        node = self._table(path[0], path, origin)
        for depth, segment in enumerate(path[1:-1], start=2):
            if node is None:
                return False
            inner = _part_called(segment, node) if isinstance(node, list) else node.get(segment)
            if inner is None and isinstance(node, dict):
                inner = node[segment] = {}
            if not isinstance(inner, dict) and not (isinstance(inner, list) and path[0] in self.parts):
                self._refuse(path[:depth], inner, path, origin)
                return False
            node = inner
        if isinstance(node, list):
            self._refuse(path[:-1], node, path, origin)
        if not isinstance(node, dict):
            return False
        if value is None and path[0] == SCHEDULES:
            node.pop(path[-1], None)
        else:
            node[path[-1]] = value
        return True

    def _table(self, first: str | int, path: KeyPath, origin: Origin) -> Any:
        """The table, or list of parts, that stands at a top-level name, built from its default when nothing does."""
        if first == SCHEDULES:
            self.schedules = {} if self.schedules is None else self.schedules
            return self.schedules
        name = str(first)
        if name not in self.names:
            self.fields[name] = {}  # validation tells of the unknown name
            return self.fields[name]
        value = self.fields[name] if name in self.fields else self.default(name)
        try:
            form = natural_form(value)
        except NotWritable:
            form = _copied(value)
        if form is None:
            form = {}
        if not isinstance(form, dict) and not (isinstance(form, list) and name in self.parts):
            self._refuse((first,), value, path, origin)
            return None
        self.fields[name] = form
        return form

    def _refuse(self, at: KeyPath, value: Any, path: KeyPath, origin: Origin) -> None:
        if value is None:
            what = "is no part of the list"
        else:
            what = f"is {'a list' if isinstance(value, list) else f'of type {type(value).__name__}'}, not a table"
        message = f"{format_key_path(at)} {what}"
        self.problems.append(WrittenProblem(path, f"{message}; set it whole", origin=origin))

    def _forget(self, path: KeyPath) -> None:
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]

    def origin(self, path: KeyPath) -> Origin | None:
        """The origin of the value at a key path: its own, or that of the nearest table around it; None is default."""
        for length in range(len(path), 0, -1):
            found = self.origins.get(path[:length])
            if found is not None:
                return found
        return None

    def culprit(self, path: KeyPath) -> Origin | None:
        """The origin to tell of a problem at a key path.

        That of the value; but what a stronger layer wrote inside the value, when one did, and for a key that nobody
        wrote, what was written last beside it.
        """
        origin = self.origin(path)
        top = 2 if path[:1] == (SCHEDULES,) else 1
        for length in range(len(path), (0 if origin is None else len(path)) - 1, -1):
            inside = [o for p, o in self.origins.items() if length >= top and p[:length] == path[:length]]
            if inside:
                return inside[-1] if origin is None or not inside[-1].beside(origin) else origin
        return origin
