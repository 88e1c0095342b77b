"""`nitro show`: the fields of an experiment and where each value came from."""

from __future__ import annotations

import inspect
import os
import shutil
import textwrap
from typing import Annotated, Any

import typer

from nitro_cli.cli.options import ExperimentName, Preset, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.fields import field_lines
from nitro_cli.cli.render.tables import value_text
from nitro_cli.errors import ExitCode
from nitro_cli.experiment import KNOBS, NO_DEFAULT
from nitro_cli.registry import FieldRow, Resolved, field_rows, list_presets, resolve

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
    """The fields of an experiment: kind, type, value, where the value came from, documentation."""
    resolved = resolve(experiment, preset, sets or (), unsets or ())
    rows = field_rows(resolved)
    if output.json:
        output.document(
            experiment=resolved.class_name,
            import_path=resolved.import_path,
            doc=_about(resolved),
            preset=resolved.preset,
            presets=list_presets(resolved.ref) if resolved.ref is not None else [],
            fields=[_as_json(row) for row in rows],
            schedules=resolved.schedules,
        )
        return ExitCode.OK
    output.text("\n".join(_page(resolved, rows, every_origin=origin, knobs=knobs)))
    return ExitCode.OK


def _about(resolved: Resolved) -> str:
    return inspect.getdoc(resolved.cls) or "" if resolved.cls.__dict__.get("__doc__") else ""


def _as_json(row: FieldRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "type": row.type,
        "value": row.value,
        "default": None if row.default is NO_DEFAULT else row.default,
        "required": row.default is NO_DEFAULT,
        "origin": row.origin_text,
        "doc": row.doc,
    }


def _page(resolved: Resolved, rows: list[FieldRow], *, every_origin: bool, knobs: bool) -> list[str]:
    width = shutil.get_terminal_size((80, 24)).columns
    lines = [resolved.name, *_about(resolved).splitlines(), _source(resolved)]
    names = list_presets(resolved.ref) if resolved.ref is not None else []
    lines.append(f"preset {resolved.preset or 'none'}" + (f"; there are {', '.join(names)}" if names else ""))
    own = [row for row in rows if row.name not in KNOBS]
    if own:
        lines += ["", "fields", *field_lines(own, every_origin=every_origin, width=width)]
    if knobs:
        inherited = [row for row in rows if row.name in KNOBS]
        lines += ["", "run knobs", *field_lines(inherited, every_origin=every_origin, width=width)]
    if resolved.schedules is not None:
        lines += ["", "schedules"]
        for key, value in resolved.schedules.items():
            where = resolved.origins.get(f"schedules.{key}") or resolved.origins.get("schedules")
            lines += textwrap.wrap(
                f"{key} = {value_text(value)}", width, initial_indent="  ", subsequent_indent="      "
            )
            if where is not None:
                lines += textwrap.wrap(f"from {where}", width, initial_indent="      ", subsequent_indent="      ")
    return lines


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
