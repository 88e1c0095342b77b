"""`nitro list`: experiments and presets, or the parts of a kind, found without importing anything."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from nitro_cli.cli.output import Output
from nitro_cli.errors import ConfigError, ExitCode, nearest
from nitro_cli.registry import ExperimentRef, check_import, list_experiments, list_presets
from nitro_cli.text import Catalogue

__all__ = ["KINDS", "run"]

KINDS = {
    "experiments": "",
    "data": "nitro_cli.data.sets:DATA_SETS",
    "splits": "nitro_cli.data.splits:SPLITS",
    "tokenizers": "nitro_cli.data.language:TOKENIZERS",
    "augments": "nitro_cli.data.sets:AUGMENTS",
    "tasks": "nitro_cli.tasks:TASKS",
    "networks": "nitro_cli.networks:NETWORKS",
    "metrics": "nitro_cli.metrics:METRICS",
    "optimizers": "nitro_cli.optim:OPTIMIZERS",
    "callbacks": "nitro_cli.experiment:CALLBACKS",
    "calibrators": "nitro_cli.analysis:CALIBRATORS",
}
"""What can be listed, and where the catalogue of each kind of part is."""

_Kind = Annotated[str, typer.Argument(help=f"What to list: {', '.join(KINDS)}.", autocompletion=lambda: list(KINDS))]


def run(
    output: Output,
    kind: _Kind = "experiments",
    check: Annotated[bool, typer.Option("--check", help="Import each experiment, in a process of its own.")] = False,
) -> int:
    """Experiments and presets found: in `experiments/` of the working directory and in installed plugins.

    With a kind of part, such as `tasks`: those that nitro has and installed distributions declare.
    """
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} cannot be listed", nearest=nearest(kind, KINDS), fix=f"one of {', '.join(KINDS)}")
    if KINDS[kind]:
        return _parts(output, kind, check=check)
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


def _parts(output: Output, kind: str, *, check: bool) -> int:
    """List the catalogue of a kind of part."""
    if check:
        raise ConfigError("--check imports experiments", where=f"nitro list {kind} --check", fix="leave --check out")
    module, _, name = KINDS[kind].partition(":")
    catalogue: Catalogue[Any] = getattr(import_module(module), name)
    entries = catalogue.entries()
    if output.json:
        output.document(**{kind: [vars(entry) for entry in entries]})
        return ExitCode.OK
    sound = [entry for entry in entries if entry.error is None]
    if sound:
        from nitro_cli.cli.render.tables import table

        cells = [[e.id, str(e.version), e.distribution or "nitro", e.import_path] for e in sound]
        output.show(table([catalogue.noun, "version", "source", "import path"], cells, fold=(3,)))
    else:
        output.note(f"no {catalogue.noun} is installed; a distribution declares them in {catalogue.group}", always=True)
    for entry in entries:
        if entry.error is not None:
            output.complain_line(f"broken: {entry.id} ({entry.distribution}): {entry.error}")
    return ExitCode.OK


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
