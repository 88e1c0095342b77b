"""`nitro train`: words to values, then the handle."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from nitro_cli.cli.knob_flags import given, split_limit, with_knob_flags
from nitro_cli.cli.options import CacheDir, ExperimentName, Preset, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.cli.run_places import check_run_dir
from nitro_cli.cli.stop_signals import raise_if_stopped
from nitro_cli.errors import ConfigError, ExitCode

__all__ = ["run"]

_START = "Where to start from"

Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="S",
        help="Continue a checkpoint exactly: a path, [dir:]run:checkpoint, or auto.",
        rich_help_panel=_START,
    ),
]
StartWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="S",
        help="Initial weights: a path, [dir:]run:checkpoint or run:average(last(10)).",
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
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Resolve, build and compile; tell what training would do and cost.")
]


_PROCESSES = "Several processes"

Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Train together with other processes; a scheduler's environment says who they are.",
        rich_help_panel=_PROCESSES,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator", metavar="HOST:PORT", help="Where process 0 is, with a free port.", rich_help_panel=_PROCESSES
    ),
]
Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", help="How many there are.", rich_help_panel=_PROCESSES)
]
ProcessIndex = Annotated[
    int | None,
    typer.Option("--process-index", metavar="I", help="Which this one is, from 0.", rich_help_panel=_PROCESSES),
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
    dry_run: DryRunOption = False,
    cache_dir: CacheDir = None,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process_index: ProcessIndex = None,
    **knobs: object,
) -> ExitCode | int:
    """Train an experiment.

    Ends with the history table, where the run is, and what to do next. Exit codes: 0 completed or stopped early, 6
    diverged, 75 stopped by a signal or --max-time with the state saved, 130 stopped by Ctrl-C. With --dry-run nothing
    is trained, and nothing is written but compiled programs into the cache.
    """
    words = {
        "resume": resume,
        "weights": weights,
        "load_ema": load_ema,
        "restore_optimizer": restore_optimizer,
        "w0": w0,
    }
    joined: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if distributed or (coordinator, processes, process_index) != (None, None, None):
        from nitro_cli.cli.distributed import joined_processes

        joined = joined_processes(output, distributed, coordinator, processes, process_index)
    with joined:
        return _trained(
            output, (experiment, preset, sets or (), unsets or (), given(knobs)), smoke, dry_run, cache_dir, words
        )


def _trained(
    output: Output, names: tuple[Any, ...], smoke: bool, dry_run: bool, cache_dir: str | None, words: dict[str, Any]
) -> ExitCode | int:
    from nitro_cli.registry import resolve

    if smoke and dry_run:
        raise ConfigError("--smoke trains, and --dry-run trains nothing", fix="give one of them")
    experiment, preset, sets, unsets, flags = names
    lasting, once = split_limit(flags)
    resolved = resolve(experiment, preset, sets, unsets, lasting)
    if smoke:
        from nitro_cli.cli.render.smoke_results import tell_smoke
        from nitro_cli.smoke_run import smoke as smoke_run

        with output.hooks_to_stderr():
            result = smoke_run(resolved)
        raise_if_stopped()
        return tell_smoke(output, [result])
    check_run_dir(Path(resolved.experiment.run_dir or Path("runs") / resolved.class_name))
    if dry_run:
        from nitro_cli.cli.dry_run import dry_run_resolved

        return dry_run_resolved(output, resolved, cache_dir=cache_dir, **words)
    from nitro_cli.cli.training import train_resolved

    return train_resolved(
        output,
        resolved,
        cache_dir=cache_dir,
        named=experiment,
        **words,
        **once,
    )
