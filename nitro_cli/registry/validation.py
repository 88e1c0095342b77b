"""Checking layered values against an experiment class, each problem told at the place its value was written."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from nitro_cli.experiment import NO_DEFAULT, config_metadata, schedule_problems, validation_problems
from nitro_cli.registry.layers import SCHEDULES, Layers, schedule_paths
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.overrides import as_text
from nitro_cli.registry.problems import WrittenProblem
from nitro_cli.registry.toml_text import KeyPath, split_key_path

__all__ = ["field_problems", "layers_for", "schedules_of"]


def layers_for(cls: type[Any]) -> Layers:
    """Empty layers for an experiment class."""
    metadata = config_metadata(cls)

    def default(name: str) -> Any:
        value = metadata[name].default
        return None if value is NO_DEFAULT else value

    return Layers(default=default, names=tuple(metadata), parts=cls.__nitro_parts__)


def field_problems(cls: type[Any], layers: Layers, *, partial: bool = False) -> list[WrittenProblem]:
    """What is wrong with the fields.

    Args:
        cls: the experiment class.
        layers: the values.
        partial: whether they are one file's only: then a required field may be missing, and rules that span fields
            are not asked.
    """
    problems = []
    for found in validation_problems(cls, layers.fields):
        path: KeyPath = tuple(found.path)
        if partial and (not path or (found.kind == "missing" and len(path) == 1)):
            continue
        origin = layers.culprit(path)
        fix = _meant_as_text(cls, layers, path, origin)
        problems.append(WrittenProblem(path, found.message, found.nearest, found.kind, origin, fix))
    return problems


def _meant_as_text(cls: type[Any], layers: Layers, path: KeyPath, origin: Origin | None) -> str | None:
    """How a value is written as text, where a word that reads as a number, a date or the like would then fit."""
    if origin is None or origin.kind not in (OriginKind.SET, OriginKind.ENVIRONMENT):
        return None
    word = origin.name.partition("=")[2]
    written: KeyPath = path[:1]
    if origin.kind is OriginKind.SET:
        try:
            written, word = split_key_path(origin.name.removeprefix("--set "))
        except ValueError:
            return None
        word = word.removeprefix("=")
    if written != path or not _holds_no_text(layers.fields, path):
        return None
    fields = _replaced(layers.fields, path, word.strip())
    if any(tuple(found.path) == path for found in validation_problems(cls, fields)):
        return None
    return f"as text it is {as_text(origin.name, word.strip())}"


def _holds_no_text(node: Any, path: KeyPath) -> bool:
    """Whether there is a value at a key path, and it is no text."""
    for key in path:
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return not isinstance(node, str)


def _replaced(node: Any, path: KeyPath, value: Any) -> Any:
    """A copy of a table with another value at a key path."""
    return {**node, path[0]: _replaced(node[path[0]], path[1:], value)} if path else value


def schedules_of(layers: Layers) -> tuple[dict[str, Any] | None, list[WrittenProblem]]:
    """The schedules by key (None when no layer has the table), and what is wrong with them."""
    if layers.schedules is None:
        return None, []
    flat = schedule_paths(layers.schedules, layers.parts)
    table = {key: deepcopy(value) for key, (_, value) in flat.items()}
    problems = []
    for found in schedule_problems(table):
        key, *rest = found.path
        written = (SCHEDULES, *(flat[key][0] if key in flat else (key,)), *rest)
        problems.append(WrittenProblem(written, found.message, found.nearest, found.kind, layers.culprit(written)))
    return table, problems
