"""`nitro render`: pictures of samples, as the experiment draws them."""

from __future__ import annotations

from typing import Annotated

import typer

from nitro_cli.cli.evaluation import open_handle
from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import (
    CheckpointChoice,
    ExperimentCode,
    OptionalTarget,
    Preset,
    RunChoice,
    Sets,
    Unsets,
    WeightsOption,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.targets import Overrides, resolve_target
from nitro_cli.errors import ExitCode

__all__ = ["run"]


@with_knob_flags(("eval_weights", "n_devs"))
def run(
    output: Output,
    target: OptionalTarget = None,
    split: Annotated[str, typer.Option("--split", metavar="SPLIT", help="Split to draw from.")] = "val",
    batches: Annotated[int, typer.Option("--batches", min=1, metavar="N", help="How many of its batches.")] = 1,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Draw what the model makes of each sample, not the sample alone.")
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="Where to write; viz in the run directory.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="T", help="Start of the file names; the split's name by default.")
    ] = None,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
    **knobs: object,
) -> int:
    """Draw one picture per sample, by the experiment's visualize.

    Without --predictions nothing is computed, and an experiment needs no weights. The paths written are listed on
    stdout.
    """
    with progress_shown(output):
        overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
        found = resolve_target(
            target, overrides, weights=weights, run=run_id, checkpoint=checkpoint, needs_weights=predictions
        )
        nitro = open_handle(output, found)
        paths = nitro.render(split=split, batches=batches, predictions=predictions, out_dir=out, tag=tag)
    if output.json:
        output.document(
            experiment=found.resolved.class_name, run=found.run, checkpoint=found.checkpoint or found.weights,
            split=split, paths=paths,
        )  # fmt: skip
        return ExitCode.OK
    for path in paths:
        output.line(str(path))
    return ExitCode.OK
