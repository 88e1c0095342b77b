"""Checking layered values against an experiment class, each problem told at the place its value was written."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from nitro_cli.experiment import NO_DEFAULT, config_metadata, schedule_problems, validation_problems
from nitro_cli.registry.layers import SCHEDULES, Layers, flat_schedules
from nitro_cli.registry.problems import Problem
from nitro_cli.registry.toml_text import KeyPath

__all__ = ["field_problems", "layers_for", "schedules_of"]


def layers_for(cls: type[Any]) -> Layers:
    """Empty layers for an experiment class."""
    metadata = config_metadata(cls)

    def default(name: str) -> Any:
        value = metadata[name].default
        return None if value is NO_DEFAULT else value

    return Layers(default=default, names=tuple(metadata))


def field_problems(cls: type[Any], layers: Layers, *, partial: bool = False) -> list[Problem]:
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
        problems.append(Problem(path, found.message, tuple(found.nearest), layers.culprit(path)))
    return problems


def schedules_of(layers: Layers) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The schedules by key (None when no layer has the table), and what is wrong with them."""
    if layers.schedules is None:
        return None, []
    flat = flat_schedules(layers.schedules)
    table = {key: deepcopy(value) for key, (_, value) in flat.items()}
    problems = []
    for found in schedule_problems(table):
        key, *rest = found.path
        written = (SCHEDULES, *(flat[key][0] if key in flat else (key,)), *rest)
        problems.append(Problem(written, found.message, tuple(found.nearest), layers.culprit(written)))
    return table, problems
