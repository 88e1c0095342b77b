"""`nitro evaluate`: metrics of a split."""

from __future__ import annotations

from nitro_cli.cli.evaluation import open_handle, show_metrics
from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import CheckpointChoice, OptionalTarget, Preset, RunChoice, Sets, Split, Unsets, Weights
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.targets import Overrides, resolve_target
from nitro_cli.errors import ExitCode

__all__ = ["EVALUATION_KNOBS", "evaluate_split", "run"]

EVALUATION_KNOBS = ("eval_weights", "eval_loss", "n_devs")


@with_knob_flags(EVALUATION_KNOBS)
def run(
    output: Output,
    target: OptionalTarget = None,
    split: Split = "test",
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: Weights = None,
    **knobs: object,
) -> int:
    """Metrics of a split, with a run's best checkpoint or the weights named."""
    overrides = Overrides(preset, sets or (), unsets or (), given(knobs))
    return evaluate_split(output, target, overrides, split, weights=weights, run_id=run_id, checkpoint=checkpoint)


def evaluate_split(
    output: Output,
    target: str | None,
    overrides: Overrides,
    split: str,
    *,
    weights: str | None,
    run_id: str | None,
    checkpoint: str | None,
) -> int:
    """Evaluate one split of a target and show the metrics."""
    with progress_shown(output):
        found = resolve_target(target, overrides, weights=weights, run=run_id, checkpoint=checkpoint)
        nitro = open_handle(output, found)
        metrics = nitro.evaluate(split)
    show_metrics(output, found, split, metrics, found.checkpoint)
    return ExitCode.OK
