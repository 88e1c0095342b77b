"""From a name, a preset and overrides to one experiment, with the origin of each value."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Experiment
from nitro_cli.registry.discovery import ExperimentRef, find_experiment, ref_of
from nitro_cli.registry.importing import import_path_of
from nitro_cli.registry.layers import SCHEDULES, Layers
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.overrides import ordered
from nitro_cli.registry.path_values import anchor_paths
from nitro_cli.registry.preset_files import PresetFile, preset_chain
from nitro_cli.registry.problems import WrittenProblem, raise_problems
from nitro_cli.registry.resolved import Resolved
from nitro_cli.registry.sources import (
    apply_environment,
    apply_overrides,
    apply_preset,
    apply_project,
    apply_values,
    find_project,
)
from nitro_cli.registry.toml_text import KeyPath, format_key_path
from nitro_cli.registry.validation import field_problems, layers_for, schedules_of

__all__ = ["Project", "from_preset", "resolve", "resolved_of"]


class Project(Enum):
    """Where `[tool.nitro]` is read from when no file is named."""

    NEAREST = "nearest"


def resolve(
    experiment: ExperimentRef | type[Experiment] | str,
    preset: str | None = None,
    sets: Iterable[str] = (),
    unsets: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    project: Path | Project | None = Project.NEAREST,
    cwd: Path | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> Resolved:
    """Resolve one experiment: class default, `[tool.nitro]`, preset chain, environment, `--set`, flags; the later wins.

    Relative paths written in a preset or in `pyproject.toml` are relative to that file's folder, `run_dir` included
    (a preset that writes `run_dir = "out"` means `out` beside the preset); those from the command line and the
    environment are relative to the working directory.

    Args:
        experiment: a reference, a class, or a name for `find_experiment`.
        preset: the preset's name.
        sets: the words after each `--set`.
        unsets: the words after each `--unset`.
        flags: values of knob flags by field name; None is a flag that was not given.
        env: the environment, for `NITRO_<KNOB>`; `os.environ` when None, `{}` to read none.
        project: the `pyproject.toml` with `[tool.nitro]`; None reads none.
        cwd: the working directory.
        keywords: Python values by field name, as strong as flags; None is none.

    Raises:
        NotFoundError: there is no such experiment or preset.
        PresetError: presets do not fit; all their problems are listed.
        ConfigError: other values do not fit; all problems are listed.
    """
    env = os.environ if env is None else env
    ref = _ref(experiment, cwd, env)
    cls = ref.load(cwd)
    layers = layers_for(cls)
    file = find_project(cwd) if project is Project.NEAREST else project
    if isinstance(file, Path):
        apply_project(layers, file)
    alone: list[WrittenProblem] = []
    for document in reversed(preset_chain(ref, preset, cwd) if preset is not None else []):
        alone += preset_problems(cls, document)
        apply_preset(layers, document)
    apply_environment(layers, env)
    apply_overrides(layers, ordered(sets, unsets))
    apply_values(layers, flags or {}, OriginKind.FLAG)
    apply_values(layers, keywords or {}, OriginKind.KEYWORD)
    return finish(ref, cls, layers, preset, alone)


def _ref(experiment: ExperimentRef | type[Experiment] | str, cwd: Path | None, env: Mapping[str, str]) -> ExperimentRef:
    if isinstance(experiment, str):
        return find_experiment(experiment, cwd, env)
    return experiment if isinstance(experiment, ExperimentRef) else ref_of(experiment)


def preset_problems(cls: type[Experiment], preset: PresetFile) -> list[WrittenProblem]:
    """What is wrong with one preset file by itself, whatever other layers put over it."""
    layers = layers_for(cls)
    apply_preset(layers, preset)
    return [*layers.problems, *field_problems(cls, layers, partial=True), *schedules_of(layers)[1]]


def chain_problems(ref: ExperimentRef, name: str, cwd: Path | None = None) -> list[WrittenProblem]:
    """What is wrong with a preset: each file of its chain by itself, and what they give together.

    Raises:
        PresetError: a file of the chain is not TOML.
        ConfigError: the experiment cannot be imported.
    """
    cls = ref.load(cwd)
    layers = layers_for(cls)
    alone: list[WrittenProblem] = []
    for document in reversed(preset_chain(ref, name, cwd)):
        alone += preset_problems(cls, document)
        apply_preset(layers, document)
    return [*alone, *layers.problems, *field_problems(cls, layers), *schedules_of(layers)[1]]


def finish(
    ref: ExperimentRef,
    cls: type[Experiment],
    layers: Layers,
    preset: str | None,
    problems: Iterable[WrittenProblem] = (),
) -> Resolved:
    """Check the layered values and build the experiment.

    Raises:
        PresetError: one of the problems stands in a preset.
        ConfigError: values do not fit.
    """
    schedules, in_schedules = schedules_of(layers)
    raise_problems([*problems, *layers.problems, *field_problems(cls, layers), *in_schedules], ref.name)
    experiment = cls(**layers.fields)
    if anchor_paths(layers, {name: getattr(experiment, name) for name in layers.names}):
        raise_problems(field_problems(cls, layers), ref.name)
        experiment = cls(**layers.fields)
    origins = {format_key_path(path): origin for path, origin in _told(layers)}
    return Resolved(experiment, cls, import_path_of(cls), preset, schedules, origins, ref)


def _told(layers: Layers) -> Iterable[tuple[KeyPath, Origin]]:
    """Origins of fields and schedule keys, and of what is inside them only where it was written elsewhere."""
    for path, origin in layers.origins.items():
        around = layers.origin(path[:-1])
        elsewhere = around is None or not origin.beside(around)
        if elsewhere or (path[0] == SCHEDULES and len(path) == 2):
            yield path, origin


def from_preset(cls: type[Experiment], name: str, cwd: Path | None = None, /, **values: Any) -> Resolved:
    """Build an experiment from a preset in Python; keywords win over the preset.

    Neither the environment nor `[tool.nitro]` is read: a program's values are those it writes.

    Raises:
        PresetNotFoundError: the experiment has no such preset.
        PresetError: the preset does not fit.
        ConfigError: a keyword does not fit.
    """
    return resolve(cls, name, env={}, project=None, cwd=cwd, keywords=values)


def resolved_of(
    experiment: Experiment | Resolved, preset: str | None = None, schedules: Mapping[str, Any] | None = None
) -> Resolved:
    """Describe an experiment that was built in Python, so that it can be recorded; a `Resolved` stays.

    Raises:
        ConfigError: it is no experiment, such as the class instead of an instance.
    """
    if isinstance(experiment, Resolved):
        return experiment if schedules is None else experiment.with_schedules(schedules)
    if not isinstance(experiment, Experiment):
        raise _no_experiment(experiment)
    cls = type(experiment)
    ref = ref_of(cls)
    fields = (name for name in cls.model_fields if name in experiment.model_fields_set)
    origins = {name: Origin(OriginKind.KEYWORD, name) for name in fields}
    found = Resolved(experiment, cls, import_path_of(cls), preset, None, origins, ref)
    return found if schedules is None else found.with_schedules(schedules)


def _no_experiment(given: Any) -> ConfigError:
    if isinstance(given, type) and issubclass(given, Experiment):
        name = given.__name__
        return ConfigError(f"Nitro takes an experiment, not the class {name}", fix=f"Nitro({name}())")
    what = f"the class {given.__name__}" if isinstance(given, type) else reprlib.repr(given)
    return ConfigError(
        f"Nitro takes an experiment, not {what}", fix="give it an instance of your class: Nitro(MyExperiment())"
    )
