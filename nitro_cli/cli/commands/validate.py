"""`nitro validate`: metrics of the val split."""

from __future__ import annotations

from nitro_cli.cli.commands.evaluate import EVALUATION_KNOBS, evaluate_split
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
from nitro_cli.cli.targets import Overrides

__all__ = ["run"]


@with_knob_flags(EVALUATION_KNOBS)
def run(
    output: Output,
    target: OptionalTarget = None,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
    **knobs: object,
) -> int:
    """Metrics of the val split, with a run's best checkpoint or the weights named."""
    overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
    return evaluate_split(output, target, overrides, "val", weights=weights, run_id=run_id, checkpoint=checkpoint)
