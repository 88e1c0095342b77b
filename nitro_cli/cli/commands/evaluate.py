"""`nitro evaluate`: metrics of a split."""

from __future__ import annotations

from collections.abc import Collection

from nitro_cli.cli.applied_artefacts import AppliedArtefacts
from nitro_cli.cli.declared_outputs import DeclaredOutputs, with_declared_outputs
from nitro_cli.cli.evaluation import open_handle, show_metrics
from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import (
    CheckpointChoice,
    ExperimentCode,
    OptionalTarget,
    Preset,
    RunChoice,
    Sets,
    SplitOption,
    Unsets,
    WeightsOption,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.prediction_options import CalibratorChoice, OverrideName, PolicyChoice
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.targets import Overrides, resolve_target
from nitro_cli.errors import ExitCode, NotFoundError, nearest

__all__ = ["EVALUATION_KNOBS", "evaluate_split", "run"]

EVALUATION_KNOBS = ("eval_weights", "eval_loss", "n_devs")


@with_declared_outputs
@with_knob_flags(EVALUATION_KNOBS)
def run(
    output: Output,
    declared: DeclaredOutputs,
    target: OptionalTarget = None,
    split: SplitOption = "test",
    calibrator: CalibratorChoice = None,
    policy: PolicyChoice = None,
    override: OverrideName = None,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
    **knobs: object,
) -> int:
    """Metrics of a split, with a run's best checkpoint or the weights named.

    A calibrator adds the scores of its probabilities, a policy how many rows it accepts at which risk.
    """
    overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
    applied = AppliedArtefacts(declared, calibrator, policy, override)
    return evaluate_split(
        output, target, overrides, split, weights=weights, run_id=run_id, checkpoint=checkpoint, applied=applied
    )


def evaluate_split(
    output: Output,
    target: str | None,
    overrides: Overrides,
    split: str,
    *,
    weights: str | None,
    run_id: str | None,
    checkpoint: str | None,
    applied: AppliedArtefacts | None = None,
) -> int:
    """Evaluate one split of a target and show the metrics."""
    with progress_shown(output):
        found = resolve_target(target, overrides, weights=weights, run=run_id, checkpoint=checkpoint)
        words = {} if applied is None else applied.words(found, judged=True)
        nitro = open_handle(output, found)
        _check_split(split, nitro.plan.splits)
        metrics = nitro.evaluate(split, **words)
    source = nitro.plan.source
    loaded = source.path if found.checkpoint is not None and source is not None else None
    if loaded is not None and found.checkpoint is not None and loaded.name != found.checkpoint.name:
        output.note(f"taken instead, as the run goes on: {loaded.name}")
    show_metrics(output, found, split, metrics, loaded or found.checkpoint)
    return ExitCode.OK


def _check_split(split: str, held: Collection[str]) -> None:
    if split in held:
        return
    others = [name for name in held if name not in ("train", "val")] + (["train"] if "train" in held else [])
    ways = ["`nitro validate` for the val split"] if "val" in held else []
    ways += [f"`nitro evaluate --split {name}`" for name in others]
    raise NotFoundError(
        f"there is no split {split!r}",
        why=f"build_data returned: {', '.join(sorted(held)) or 'none'}",
        fix=", or ".join(ways) or "return it from build_data",
        nearest=nearest(split, held),
    )
