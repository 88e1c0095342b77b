"""`nitro presets`: the registry of configurations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nitro_cli.cli import completion
from nitro_cli.cli.options import ExperimentName, Force, Preset, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.fields import plain_value
from nitro_cli.cli.render.tables import table, value_text
from nitro_cli.errors import ExitCode
from nitro_cli.registry import (
    Resolved,
    check_presets,
    diff_presets,
    find_experiment,
    list_experiments,
    list_presets,
    new_preset,
    preset_path,
    resolve,
    show_preset,
)

__all__ = ["check", "diff", "new", "show"]

PresetName = Annotated[str, typer.Argument(metavar="P", help="The preset.", autocompletion=completion.presets)]


def check(
    output: Output,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXP", help="Experiments; all found by default.", autocompletion=completion.experiments),
    ] = None,
) -> int:
    """Check every preset of every experiment found, by all that needs no data.

    Made for CI: the exit code is 2 when one does not fit.
    """
    refs = [find_experiment(name) for name in experiments] if experiments else None
    problems = check_presets(refs, further=_check_schedules)
    checked = refs if refs is not None else list_experiments()
    count = sum(len(list_presets(ref)) for ref in checked)
    if output.json:
        rows = [
            {
                "experiment": p.experiment, "preset": p.preset, "path": p.path, "line": p.line, "key": p.key_path,
                "message": p.message, "nearest": p.nearest,
            }
            for p in problems
        ]  # fmt: skip
        output.document(checked=count, problems=rows)
    else:
        for problem in problems:
            output.line(str(problem))
        output.note(f"{count} presets of {len(checked)} experiments, {len(problems) or 'no'} problems")
    return ExitCode.USAGE if problems else ExitCode.OK


def _check_schedules(resolved: Resolved) -> None:
    if resolved.schedules is not None:
        from nitro_cli.optim import check_schedule_keys

        check_schedule_keys(resolved.experiment, resolved.schedules)


def show(output: Output, experiment: ExperimentName, preset: PresetName) -> int:
    """What a preset sets, what it inherits included, and in which file."""
    ref = find_experiment(experiment)
    description, fields, schedules = show_preset(ref, preset)
    if output.json:
        output.document(
            experiment=ref.class_name,
            preset=preset,
            path=preset_path(ref, preset),
            description=description,
            fields=[{"name": name, "value": value, "origin": str(origin)} for name, (value, origin) in fields.items()],
            schedules=[{"key": key, "value": value, "origin": str(o)} for key, (value, o) in schedules.items()],
        )
        return ExitCode.OK
    output.line(f"{ref.name} {preset}  ({preset_path(ref, preset)})")
    if description:
        output.text(description)
    rows = [[name, value_text(plain_value(value)), str(origin)] for name, (value, origin) in fields.items()]
    rows += [[f"schedules.{key}", value_text(value), str(origin)] for key, (value, origin) in schedules.items()]
    output.show(table(["field", "value", "from"], rows, fold=(1, 2)))
    return ExitCode.OK


def diff(output: Output, experiment: ExperimentName, left: PresetName, right: PresetName) -> int:
    """The fields and schedules on which two presets of one experiment differ."""
    ref = find_experiment(experiment)
    found = diff_presets(ref, left, right)
    if output.json:
        rows = [
            {"key": d.key, "left": d.left, "right": d.right, "left_origin": _text(d.left_origin),
             "right_origin": _text(d.right_origin)}
            for d in found
        ]  # fmt: skip
        output.document(experiment=ref.class_name, left=left, right=right, differences=rows)
    elif not found:
        output.note(f"{left} and {right} give the same configuration")
    else:
        cells = [[d.key, value_text(plain_value(d.left)), value_text(plain_value(d.right))] for d in found]
        output.show(table(["field", left, right], cells, fold=(1, 2)))
    return ExitCode.OK


def new(
    output: Output,
    experiment: ExperimentName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new preset.")],
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    extends: Annotated[
        str | None,
        typer.Option(
            "--extends", metavar="P", help="Preset that the new one extends.", autocompletion=completion.presets
        ),
    ] = None,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is for.")] = "",
    force: Force = False,
) -> int:
    """Write presets/EXP/NAME.toml: what --preset, --set and --unset change against the class, or against --extends."""
    resolved = resolve(experiment, preset or extends, sets or (), unsets or (), env={}, project=None)
    path = new_preset(resolved, name, description=description, extends=extends, overwrite=force)
    if output.json:
        output.document(experiment=resolved.class_name, preset=name, path=path)
    else:
        output.line(str(path))
        output.note(f"next: nitro train {resolved.name} --preset {name}")
    return ExitCode.OK


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
