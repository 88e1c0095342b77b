"""`nitro calibrate`: probabilities that are what they say."""

from __future__ import annotations

from typing import Annotated

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
from nitro_cli.cli.prediction_options import Repeats, ReportOn, Subjects
from nitro_cli.cli.prediction_subject import RunWords, artefact_place, open_subject
from nitro_cli.errors import ExitCode

__all__ = ["run"]


@with_declared_outputs
def run(
    output: Output,
    declared: DeclaredOutputs,
    subjects: Subjects = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="Split of a run to fit on; val by default.")
    ] = None,
    report: ReportOn = None,
    method: Annotated[
        str,
        typer.Option("--method", metavar="M", help="temperature; for --kind bernoulli also platt and isotonic."),
    ] = "temperature",
    bins: Annotated[int, typer.Option("--bins", min=1, metavar="N", help="Bins of the calibration error.")] = 10,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="F", help="File to write; in the run's analysis/, or ./calibrator.json."),
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
    """Fit a calibrator on one split, report it on another, and write it.

    Where the data gives none, the reason is told, nothing is written, and the exit code is 1.
    """
    from nitro_cli.analysis import CALIBRATORS, calibration_report, fit_calibrator
    from nitro_cli.cli.targets import Overrides

    CALIBRATORS.find(method)
    choice = RunWords(Overrides(preset, sets or (), unsets or (), None, experiment), weights, run_id, checkpoint)
    subject = open_subject(
        output, subjects or (), declared, choice, split=split, default_split="val", repeats=repeats
    )  # fmt: skip
    if subject.folder is None:
        artefact_place(None, None, "calibrator.json", out, force)
    fitted_on = subject.main()
    fit = fit_calibrator(fitted_on, method=method)
    for warning in fit.warnings:
        output.note(f"warning: {warning}", always=True)
    calibrator = fit.require()
    told = None if report is None else calibration_report(calibrator, subject.other(report), bins=bins)
    path = calibrator.save(artefact_place(fitted_on, subject.folder, "calibrator.json", out, force))
    if output.json:
        output.document(
            calibrator=calibrator.model_dump(), id=calibrator.id, path=path,
            report=None if told is None else told.as_json(),
        )  # fmt: skip
        return ExitCode.OK
    output.line(str(path))
    fitted = calibrator.fit
    rows = f"{fitted.entries} rows of {fitted_on.origin.split or 'the file'}"
    output.note(f"{calibrator.method} {_shown(calibrator.parameters)}, fitted on {rows}; id {calibrator.id}")
    if told is not None:
        from nitro_cli.cli.render.analysis import show_calibration

        show_calibration(output, told)
    return ExitCode.OK


def _shown(parameters: dict[str, object]) -> str:
    found = parameters.get("temperature")
    return f"{found:.6g}" if isinstance(found, float) else "per label"
