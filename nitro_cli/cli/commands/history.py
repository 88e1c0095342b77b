"""`nitro history`: the series of a run, from its files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nitro_cli.cli.options import RunChoice, RunDir
from nitro_cli.cli.output import Output
from nitro_cli.cli.run_places import find_run
from nitro_cli.errors import ExitCode

__all__ = ["run"]


def run(
    output: Output,
    run_dir: RunDir = None,
    run_id: RunChoice = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", metavar="M", help="Only this metric; may be repeated.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV.")] = False,
) -> int:
    """A run's metrics per epoch, the best epoch starred."""
    from nitro_cli.checkpoints import read_history

    place = find_run(run_dir, run_id, with_history=True)
    if not place.chosen:
        output.note(f"run {place.id} of {place.root}")
    history: Any = read_history(place.root, place.id)
    if metric:
        history = history.select(*metric)
    if output.json:
        output.document(run=place.id, run_dir=place.root, rows=history.json_rows(), monitor=history.monitor)
    elif csv:
        output.text(history.to_csv().rstrip("\n"))
    else:
        output.show(history)
    return ExitCode.OK
