"""`nitro abstain`: which decisions are sure enough to be taken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nitro_cli.cli.declared_outputs import DeclaredOutputs, with_declared_outputs
from nitro_cli.cli.options import (
    CheckpointChoice,
    ExperimentCode,
    Force,
    Preset,
    RunChoice,
    Sets,
    Unsets,
    WeightsOption,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.prediction_options import CalibratorChoice, OverrideName, Repeats, ReportOn, Subjects
from nitro_cli.cli.prediction_subject import RunWords, artefact_place, load_calibrator, open_subject
from nitro_cli.errors import ExitCode

if TYPE_CHECKING:
    from nitro_cli.analysis import Coverage, ThresholdSelection

__all__ = ["run"]


@with_declared_outputs
def run(
    output: Output,
    declared: DeclaredOutputs,
    subjects: Subjects = None,
    risk: Annotated[
        float, typer.Option("--risk", metavar="X", help="Ceiling of the share of wrong decisions among those taken.")
    ] = ...,  # type: ignore[assignment]
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="Split of a run to choose on; val by default.")
    ] = None,
    report: ReportOn = None,
    score: Annotated[
        str, typer.Option("--score", metavar="S", help="How sure a decision is: max_probability or margin.")
    ] = "max_probability",
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="X",
            help="How surely the ceiling holds on new data, such as 0.95; without it, it is met on this data alone.",
        ),
    ] = None,
    calibrator: CalibratorChoice = None,
    override: OverrideName = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="F", help="File to write; in the run's analysis/, or ./policy.json."),
    ] = None,
    force: Force = False,
    repeats: Repeats = False,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
) -> int:
    """Choose the threshold of largest coverage under a ceiling of the risk, and write it as a policy.

    Where no threshold keeps the risk under the ceiling, the smallest one reached is told, nothing is written, and the
    exit code is 1.
    """
    from nitro_cli.analysis import select_threshold
    from nitro_cli.cli.targets import Overrides

    choice = RunWords(Overrides(preset, sets or (), unsets or (), None, experiment), weights, run_id, checkpoint)
    subject = open_subject(
        output, subjects or (), declared, choice, split=split, default_split="val", repeats=repeats
    )  # fmt: skip
    known = load_calibrator(calibrator, subject.folder)
    if subject.folder is None:
        artefact_place(None, None, "policy.json", out, force)
    chosen_on = subject.main()
    selection = select_threshold(
        chosen_on, risk=risk, score=score, calibrator=known, confidence=confidence, override=override
    )
    policy = selection.require()
    told = None
    if report is not None:
        decisions = policy.apply(subject.other(report), calibrator=known, override=override)
        told = decisions.report(fitted_ids=chosen_on.ids if chosen_on.origin.ids is not None else None)
    path = policy.save(artefact_place(chosen_on, subject.folder, "policy.json", out, force))
    _tell(output, selection, path, chosen_on.origin.split or "the file", None if told is None else (str(report), told))
    return ExitCode.OK


def _tell(
    output: Output, selection: ThresholdSelection, path: Path, where: str, reported: tuple[str, Coverage] | None
) -> None:
    """Say what was chosen on `where`, and what it comes to on the split that it is reported on."""
    policy = selection.require()
    point = selection.point
    assert point is not None
    if output.json:
        document: dict[str, Any] = {"policy": policy.model_dump(), "id": policy.id, "path": path}
        output.document(
            **document, chosen=point.as_json(), bound=selection.bound, aurc=selection.curve.aurc,
            report=None if reported is None else reported[1].as_json(),
        )  # fmt: skip
        return
    output.line(str(path))
    kind = "met on this data, promised nowhere else" if selection.bound is None else (
        f"at most {selection.bound:.4f} with confidence {policy.confidence:g}"
    )  # fmt: skip
    output.note(
        f"{policy.score} >= {policy.threshold:.6g}: coverage {point.coverage:.4f}, risk {point.risk:.4f} on {where} "
        f"({kind}); id {policy.id}"
    )
    if reported is not None:
        output.line(f"{reported[0]}: {reported[1].summary}")
