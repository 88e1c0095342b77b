"""The options that several commands share, spelled once."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from nitro_cli.cli import completion

__all__ = [
    "CacheDir",
    "CheckpointChoice",
    "ExperimentCode",
    "ExperimentName",
    "Force",
    "OptionalTarget",
    "Preset",
    "RunChoice",
    "RunDir",
    "Sets",
    "SplitOption",
    "Unsets",
    "WeightsOption",
    "Yes",
    "use_program_cache",
]

CacheDir = Annotated[
    str | None,
    typer.Option(
        "--cache-dir", metavar="DIR", help="Where compiled programs are kept between processes; off for nowhere."
    ),
]
ExperimentName = Annotated[
    str,
    typer.Argument(
        metavar="EXP",
        help="Experiment: a name, path/to/file.py:Class or package.module:Class.",
        autocompletion=completion.experiments,
    ),
]
ExperimentCode = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        metavar="EXP",
        help="Code of the target's experiment, such as path/to/file.py:Class; found by the recorded name by default.",
        autocompletion=completion.experiments,
    ),
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Experiment, run directory, run id or checkpoint path; the newest run under runs/ by default.",
        autocompletion=completion.targets,
        show_default=False,
    ),
]
RunDir = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN_DIR",
        help="Run directory, a run's own directory, or a run id; the newest run under runs/ by default.",
        autocompletion=completion.known_runs,
        show_default=False,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", "-p", metavar="P", help="Preset of the experiment.", autocompletion=completion.presets),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="K=V",
        help="Set a field or schedule, such as width=256 or schedules.learning_rate.peak=3e-4; may be repeated.",
        autocompletion=completion.fields,
    ),
]
Unsets = Annotated[
    list[str] | None,
    typer.Option(
        "--unset", metavar="K", help="Set a field to none; may be repeated.", autocompletion=completion.fields
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="S",
        help="Weights to use: a checkpoint path, or [dir:]run:checkpoint such as latest:best.",
    ),
]
RunChoice = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ID",
        help="Run of the directory, by id or unique prefix; the newest by default.",
        autocompletion=completion.run_ids,
    ),
]
CheckpointChoice = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="C",
        help="best, latest, or a checkpoint's name or unique prefix; the best by default.",
    ),
]
SplitOption = Annotated[str, typer.Option("--split", metavar="SPLIT", help="Split to evaluate.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def use_program_cache(directory: str | None) -> None:
    """Turn the persistent program cache on, in `directory` or where the environment says; `off` switches it off.

    To be called before the first array exists.
    """
    if directory is not None:
        os.environ["NITRO_CACHE_DIR"] = directory
    from nitro_cli.programs import setup_cache

    setup_cache()
