"""The options that analyze, calibrate and abstain share, spelled once."""

from __future__ import annotations

from typing import Annotated

import typer

from nitro_cli.cli import completion

__all__ = ["CalibratorChoice", "OverrideName", "PolicyChoice", "Repeats", "ReportOn", "Subjects"]

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET|FILE...",
        help="Prediction files (.npz), read as one set; or a run directory, run id or checkpoint.",
        autocompletion=completion.targets,
        show_default=False,
    ),
]
CalibratorChoice = Annotated[
    str | None, typer.Option("--calibrator", metavar="C", help="A calibrator's file, or latest of the run.")
]
PolicyChoice = Annotated[
    str | None, typer.Option("--policy", metavar="P", help="A policy's file, or latest of the run.")
]
OverrideName = Annotated[
    str | None,
    typer.Option("--override", metavar="NAME", help="Accept another model or other labels under this name."),
]
Repeats = Annotated[bool, typer.Option("--repeats", help="A sample may be there several times.")]
ReportOn = Annotated[
    str | None,
    typer.Option("--report", metavar="SPLIT|FILE", help="Also report on this split of the run, or on this file."),
]
