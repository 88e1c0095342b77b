"""`nitro plot`: the series of a run as a picture."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from nitro_cli.cli.options import RunChoice, RunDir
from nitro_cli.cli.output import Output
from nitro_cli.cli.run_places import find_run
from nitro_cli.errors import ConfigError, ExitCode, StorageError
from nitro_cli.text import user_path

__all__ = ["run"]


class Axis(StrEnum):
    """What stands along the bottom."""

    EPOCH = "epoch"
    STEP = "step"


def run(
    output: Output,
    run_dir: RunDir = None,
    run_id: RunChoice = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="M",
            help="A metric to draw, or all; may be repeated. The losses and the monitored one by default.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="F", help="File to write; RUN/history.png by default.")
    ] = None,
    x: Annotated[Axis, typer.Option("--x", help="Horizontal axis.")] = Axis.EPOCH,
) -> int:
    """Draw a run's metrics over its epochs to a file."""
    from nitro_cli.checkpoints import read_history

    place = find_run(run_dir, run_id, with_history=True)
    history = read_history(place.root, place.id)
    wanted = None if not metric else ("all" if metric == ["all"] else metric)
    figure = history.plot(wanted, x=x.value)
    target = user_path(out) if out is not None else place.path / "history.png"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150)
    except ValueError as error:
        raise ConfigError(f"cannot write {target}", why=str(error), fix="end the name in .png, .svg or .pdf") from error
    except OSError as error:
        raise StorageError(
            f"cannot write {target}",
            where=str(error.filename or target.parent),
            why=error.strerror or str(error),
            fix="name another file with --out, or change the permissions",
        ) from error
    if output.json:
        output.document(run=place.id, run_dir=place.root, path=target)
    else:
        output.line(str(target))
    return ExitCode.OK
