"""`nitro train`: words to values, then the handle."""

from __future__ import annotations

from typing import Annotated

import typer

from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import CacheDir, ExperimentName, Preset, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.errors import ExitCode

__all__ = ["run"]

_START = "Where to start from"

Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="S",
        help="Continue a checkpoint exactly: a path, run:checkpoint, or auto.",
        rich_help_panel=_START,
    ),
]
StartWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="S",
        help="Initial weights: a path, run:checkpoint or run:average(last(10)).",
        rich_help_panel=_START,
    ),
]
LoadEma = Annotated[
    bool, typer.Option("--load-ema", help="Take the source's averaged weights.", rich_help_panel=_START)
]
RestoreOptimizer = Annotated[
    bool, typer.Option("--restore-optimizer", help="Take the optimizer state of --weights too.", rich_help_panel=_START)
]
W0 = Annotated[
    str,
    typer.Option(
        "--w0", metavar="W", help="What decay toward w0 means: build_model or weights.", rich_help_panel=_START
    ),
]
Smoke = Annotated[
    bool, typer.Option("--smoke", help="A tiny run of this experiment, end to end, in a temporary folder.")
]


@with_knob_flags()
def run(
    output: Output,
    experiment: ExperimentName,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    resume: Resume = None,
    weights: StartWeights = None,
    load_ema: LoadEma = False,
    restore_optimizer: RestoreOptimizer = False,
    w0: W0 = "build_model",
    smoke: Smoke = False,
    cache_dir: CacheDir = None,
    **knobs: object,
) -> ExitCode | int:
    """Train an experiment.

    Ends with the history table, where the run is, and what to do next. Exit codes: 0 completed or stopped early, 6
    diverged, 75 stopped by a signal or --max-time with the state saved, 130 stopped by Ctrl-C.
    """
    from nitro_cli.registry import resolve

    resolved = resolve(experiment, preset, sets or (), unsets or (), given(knobs))
    if smoke:
        from nitro_cli.cli.smoke import smoke_one, tell_smoke

        return tell_smoke(output, [smoke_one(output, resolved)])
    from nitro_cli.cli.training import train_resolved

    return train_resolved(
        output,
        resolved,
        cache_dir=cache_dir,
        resume=resume,
        weights=weights,
        load_ema=load_ema,
        restore_optimizer=restore_optimizer,
        w0=w0,
    )
