"""`nitro compare`: runs side by side, from their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nitro_cli.cli import completion
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import number, table, value_text
from nitro_cli.cli.run_places import FoundRun, find_run, run_roots, summaries
from nitro_cli.cli.run_status import status_text
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.checkpoints import ComparedRun, Comparison

__all__ = ["run"]


def run(
    output: Output,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs: ids, own directories, or run directories, of which the newest; of one alone, all.",
            autocompletion=completion.known_runs,
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="Also the fields that are the same.")] = False,
) -> int:
    """Configurations and results of two or more runs side by side, differences first; of a directory, all its runs."""
    from nitro_cli.checkpoints import compare_runs

    places = _all_of(output, runs[0]) if len(runs) == 1 else [find_run(text) for text in runs]
    if len(places) < 2:
        raise ConfigError("one run has nothing to be compared with", fix="name two or more: `nitro compare RUN RUN`")
    found = compare_runs(*(place.path for place in places))
    if output.json:
        output.document(
            runs=[_as_json(run) for run in found.runs],
            differences=[{"field": n, "values": [run.fields.get(n) for run in found.runs]} for n in found.differences],
            same={name: found.runs[0].fields[name] for name in found.same},
        )
        return ExitCode.OK
    columns = ["", *(run.path.name for run in found.runs)]
    shown = [_shown(run) for run in found.runs]
    rows = [
        [key, *(results.get(key) for results in shown)] for key in dict.fromkeys(key for run in shown for key in run)
    ]
    output.show(table(columns, rows, fold=tuple(range(1, len(columns))), title="results"))
    _show_fields(output, columns, found, found.differences, "\ndifferent")
    if every:
        _show_fields(output, columns, found, found.same, "\nthe same")
    elif found.same:
        output.note(f"{len(found.same)} fields are the same; --all shows them")
    return ExitCode.OK


def _all_of(output: Output, text: str) -> list[FoundRun]:
    """The runs of a directory, the oldest first, but for those without a configuration; else the one run there is."""
    roots = list(run_roots(user_path(text)))
    places = [FoundRun(root, summary.id) for root in roots for summary in reversed(summaries(root))]
    readable = [place for place in places if place.has_config]
    if len(readable) < 2:
        return [find_run(text)]
    if left := [place.id for place in places if place not in readable]:
        output.note(f"left out, having no config.toml: {', '.join(left)}")
    return readable


def _show_fields(output: Output, columns: list[str], found: Comparison, names: Sequence[str], title: str) -> None:
    if not names:
        return
    rows = [[n, *(value_text(run.fields[n]) if n in run.fields else "-" for run in found.runs)] for n in names]
    output.show(table(columns, rows, fold=tuple(range(1, len(columns))), title=title))


def _as_json(run: ComparedRun) -> dict[str, Any]:
    found = {} if run.summary is None else run.summary.as_json()
    facts = {key: found.get(key) for key in ("experiment", "import_path", "preset", "status", "best", "parent")}
    facts["stop_cause"] = None if run.summary is None else run.summary.stop_cause
    return {"id": run.path.name, "run_dir": run.path.parent, **facts, "epochs": run.epochs, "last": dict(run.last)}


def _shown(run: ComparedRun) -> dict[str, str]:
    best = None if run.summary is None else run.summary.best
    shown = {"status": "None" if run.summary is None else status_text(run.summary), "epochs": str(run.epochs)}
    if best is not None:
        shown[f"best {best.metric}"] = number(best.score, 6)
    last = {key: value for key, value in run.last.items() if key not in ("epoch", "step")}
    return shown | {f"last {key}": number(value, 6) for key, value in last.items()}
