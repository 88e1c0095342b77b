"""`nitro list`: experiments and presets, found without importing anything."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nitro_cli.cli.output import Output
from nitro_cli.errors import ExitCode
from nitro_cli.registry import ExperimentRef, check_import, list_experiments, list_presets

__all__ = ["run"]


def run(
    output: Output,
    check: Annotated[bool, typer.Option("--check", help="Import each experiment, in a process of its own.")] = False,
) -> int:
    """Experiments and presets found: in `experiments/` of the working directory and in installed plugins."""
    refs = list_experiments()
    rows = [_described(ref, check=check) for ref in refs]
    broken = [row for row in rows if row["error"]]
    if output.json:
        output.document(experiments=rows)
    elif not rows:
        output.note("no experiment found; `nitro new NAME` writes a project with one", always=True)
    else:
        from nitro_cli.cli.render.tables import table

        cells = [[row["name"], _where(row), ", ".join(row["presets"]) or "-"] for row in rows if not row["error"]]
        output.show(table(["experiment", "source", "presets"], cells, fold=(2,)))
    if not output.json:
        for row in broken:
            output.complain_line(f"broken: {row['name']} ({_where(row)}): {row['error']}")
    return ExitCode.FAILED if check and broken else ExitCode.OK


def _described(ref: ExperimentRef, *, check: bool) -> dict[str, Any]:
    error = ref.error
    if check and error is None:
        error = check_import(ref)
    return {
        "name": ref.name,
        "experiment": ref.class_name,
        "source": ref.source,
        "distribution": ref.distribution,
        "import_path": ref.import_path,
        "file": ref.file,
        "presets": list_presets(ref),
        "error": error,
    }


def _where(row: dict[str, Any]) -> str:
    return f"plugin {row['distribution']}" if row["source"] == "plugin" else str(row["source"])
