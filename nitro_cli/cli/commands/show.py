"""`nitro show`: the fields of an experiment, or of a run, and where each value came from."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Sequence
from typing import Annotated

import typer

from nitro_cli.cli.configuration import configuration_document, configuration_lines
from nitro_cli.cli.options import ExperimentName, Preset, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.cli.run_places import find_run, is_run_directory, is_run_root
from nitro_cli.errors import ConfigError, ExitCode, ExperimentNotFoundError, RunNotFoundError
from nitro_cli.experiment import HookTable
from nitro_cli.registry import Resolved, list_presets, read_config, resolve
from nitro_cli.text import user_path, visible

__all__ = ["run"]


def run(
    output: Output,
    experiment: ExperimentName,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say for every value where it was written.")] = False,
    knobs: Annotated[bool, typer.Option("--knobs/--no-knobs", help="Show the inherited run knobs too.")] = True,
) -> int:
    """The fields of an experiment, or those that a run used: kind, type, value, origin; and whose each hook is."""
    resolved = _resolved(experiment, preset, sets or (), unsets or ())
    hooks = HookTable(resolved.experiment).owners()
    presets = list_presets(resolved.ref) if resolved.ref is not None else []
    if output.json:
        output.document(**configuration_document(resolved), hooks=hooks, doc=_about(resolved), presets=presets)
        return ExitCode.OK
    width = shutil.get_terminal_size((80, 24)).columns
    head = [resolved.name, *_about(resolved).splitlines(), _source(resolved)]
    head.append(
        f"preset {resolved.preset or 'none'}"
        + (f"; there are {visible(', '.join(presets), keep='')}" if presets else "")
    )
    lines = configuration_lines(resolved, every_origin=origin, knobs=knobs, width=width)
    if hooks:
        longest = max(map(len, hooks))
        lines += ["", "hooks", *(f"  {name:<{longest}}  {owner}" for name, owner in hooks.items())]
    output.text("\n".join([*head, *lines]))
    return ExitCode.OK


def _resolved(text: str, preset: str | None, sets: Sequence[str], unsets: Sequence[str]) -> Resolved:
    """The experiment, or the run, that the text names."""
    if is_run_root(user_path(text)) or is_run_directory(user_path(text)):
        return _of_run(text, preset, sets, unsets)
    try:
        return resolve(text, preset, sets, unsets)
    except ExperimentNotFoundError:
        with contextlib.suppress(RunNotFoundError):
            return _of_run(text, preset, sets, unsets)
        raise


def _of_run(text: str, preset: str | None, sets: Sequence[str], unsets: Sequence[str]) -> Resolved:
    root, colon, run = text.rpartition(":")
    place = find_run(root, run) if colon and run and is_run_root(user_path(root)) else find_run(text)
    if preset is not None:
        raise ConfigError(
            "--preset does not go with a run", where=f"--preset {preset}", why="a run has a configuration of its own"
        )
    return read_config(place.config, sets, unsets)


def _about(resolved: Resolved) -> str:
    return inspect.getdoc(resolved.cls) or "" if resolved.cls.__dict__.get("__doc__") else ""


def _source(resolved: Resolved) -> str:
    """Where the class is: its file below the working directory, or its import path."""
    ref = resolved.ref
    if ref is None or ref.file is None:
        return resolved.import_path
    relative = os.path.relpath(ref.file)
    if relative.startswith(".."):
        owner = f" of {ref.distribution}" if ref.distribution else ""
        return f"{resolved.import_path}{owner}"
    return f"{relative}:{ref.line}" if ref.line else relative
