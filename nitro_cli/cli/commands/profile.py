"""`nitro profile`: a short run taken apart by time, with the profiler's trace of some of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nitro_cli.cli.knob_flags import FLAGS, given, with_knob_flags
from nitro_cli.cli.options import (
    CacheDir,
    CheckpointChoice,
    ExperimentCode,
    OptionalTarget,
    Preset,
    RunChoice,
    Sets,
    Unsets,
    use_program_cache,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.render.tables import table
from nitro_cli.cli.targets import Overrides, resolve_target
from nitro_cli.errors import ExitCode

if TYPE_CHECKING:
    from nitro_cli.profiling import PhaseTime, Profile

__all__ = ["run"]

_WINDOW = "What to trace"


@with_knob_flags(name for name in FLAGS if name != "max_time")
def run(
    output: Output,
    target: OptionalTarget = None,
    first_step: Annotated[
        int | None,
        typer.Option(
            "--first-step", min=1, metavar="N", help="First step to trace; the sixth.", rich_help_panel=_WINDOW
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="How many steps to trace; 20.", rich_help_panel=_WINDOW),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where to write; profile in the run directory.",
            rich_help_panel=_WINDOW,
        ),
    ] = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    experiment: ExperimentCode = None,
    cache_dir: CacheDir = None,
    **knobs: object,
) -> int:
    """Train for a short while and say where the time went; write a trace of some steps for TensorBoard or Perfetto.

    The run is a real one, with one validation and one checkpoint; only the trace is left of it. Each step is waited
    for, which train does not.
    """
    with progress_shown(output):
        overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
        found = resolve_target(target, overrides, run=run_id, checkpoint=checkpoint, needs_weights=False)
        if found.said:
            output.note(found.said)
        use_program_cache(cache_dir)
        from nitro_cli.profiling import profile

        resolved = found.resolved
        weights = found.weights if found.checkpoint is None else str(found.checkpoint)
        made = profile(resolved, out_dir=out, first_step=first_step, steps=steps, weights=weights)
    if output.json:
        output.document(
            experiment=resolved.class_name, import_path=resolved.import_path, preset=resolved.preset, run=found.run,
            checkpoint=found.checkpoint, **made.as_json(),
        )  # fmt: skip
        return ExitCode.OK
    _tell(output, made)
    return ExitCode.OK


def _tell(output: Output, made: Profile) -> None:
    columns = ["phase", "seconds", "share", "times", "each", "of an epoch"]
    title = f"steps {made.first_step} to {made.first_step + made.steps - 1}"
    output.show(table(columns, [_row(phase) for phase in made.phases], right=(1, 2, 3, 4, 5), title=title))
    if made.resident:
        output.note("the data is on the device: no step waits for it, none is moved")
    beside = [phase.name for phase in made.phases if phase.overlapped]
    if beside:
        output.note(f"{beside[0]}: on a thread of its own, beside the steps")
    output.note(f"an epoch of {made.steps_per_epoch} steps like these would take {_seconds(made.epoch_seconds)}")
    output.note("trace: " + "\n       ".join(str(file) for file in made.files))
    output.note(f"look at it with `tensorboard --logdir {made.trace}`, or open the .json.gz at https://ui.perfetto.dev")


def _row(phase: PhaseTime) -> list[str | None]:
    part = None if phase.epoch_share is None else f"{phase.epoch_share:.1%}"
    share = None if phase.share is None else f"{phase.share:.1%}"
    return [phase.name, f"{phase.seconds:.3f}", share, str(phase.times), _seconds(phase.each), part]


def _seconds(seconds: float) -> str:
    """A duration with the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"
