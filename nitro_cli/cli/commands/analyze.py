"""`nitro analyze`: what predictions are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nitro_cli.cli.declared_outputs import DeclaredOutputs, with_declared_outputs
from nitro_cli.cli.options import CheckpointChoice, ExperimentCode, Preset, RunChoice, Sets, Unsets, WeightsOption
from nitro_cli.cli.output import Output
from nitro_cli.cli.prediction_options import CalibratorChoice, OverrideName, PolicyChoice, Repeats, Subjects
from nitro_cli.cli.prediction_subject import RunWords, load_calibrator, load_policy, open_subject, place_of
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.analysis import Analysis

__all__ = ["run"]


@with_declared_outputs
def run(
    output: Output,
    declared: DeclaredOutputs,
    subjects: Subjects = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="Split of a run; test by default.")
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="F",
            help="Also by parts: a field, age=30,60, a*b, class, decoded or confidence; may be repeated.",
        ),
    ] = None,
    min_rows: Annotated[int, typer.Option("--min-rows", min=1, metavar="N", help="Rows that a part needs.")] = 20,
    bins: Annotated[int, typer.Option("--bins", min=1, metavar="N", help="Bins of the calibration error.")] = 10,
    errors: Annotated[int, typer.Option("--errors", min=0, metavar="N", help="Mistakes to list.")] = 20,
    calibrator: CalibratorChoice = None,
    policy: PolicyChoice = None,
    override: OverrideName = None,
    figures: Annotated[str | None, typer.Option("--figures", metavar="DIR", help="Draw figures into DIR.")] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw SVG instead of PNG.")] = False,
    projection: Annotated[
        str, typer.Option("--projection", metavar="P", help="Outputs in two dimensions: pca or tsne.")
    ] = "pca",
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="F", help="Write the report to F.json or F.md.")
    ] = None,
    repeats: Repeats = False,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
) -> int:
    """Metrics, confusion, calibration, mistakes and parts of the data, from prediction files or of a run.

    Of files nothing but the files is read. Of a run the predictions of a split are made first, and the report is kept
    in its analysis/.
    """
    from nitro_cli.analysis import analyze
    from nitro_cli.cli.targets import Overrides

    target_file = _checked_out(out)
    choice = RunWords(Overrides(preset, sets or (), unsets or (), None, experiment), weights, run_id, checkpoint)
    cuts = tuple(slices or ())
    subject = open_subject(
        output, subjects or (), declared, choice,
        split=split, default_split="test", fields=_sliced_fields(cuts), repeats=repeats,
    )  # fmt: skip
    known_calibrator, known_policy = load_calibrator(calibrator, subject.folder), load_policy(policy, subject.folder)
    found = analyze(
        subject.main(), bins=bins, errors=errors, slices=cuts, min_rows=min_rows,
        calibrator=known_calibrator, policy=known_policy, override=override,
    )  # fmt: skip
    drawn = _draw(found, figures, projection, svg)
    kept = place_of(found.prediction, subject.folder, "analysis.json")
    for place in filter(None, (target_file, kept)):
        _write(found, place)
    if output.json:
        output.document(**found.as_json(), path=target_file or kept, figures=drawn)
        return ExitCode.OK
    from nitro_cli.cli.render.analysis import show_analysis

    show_analysis(output, found)
    for path in (*filter(None, (target_file, kept)), *drawn):
        output.note(f"written: {path}")
    return ExitCode.OK


def _sliced_fields(slices: tuple[str, ...]) -> tuple[str, ...]:
    """The fields that slices are by, so that they are read."""
    names = (part.partition("=")[0].strip() for text in slices for part in text.split("*"))
    return tuple(dict.fromkeys(name for name in names if name not in ("class", "decoded", "confidence")))


def _checked_out(out: str | None) -> Path | None:
    if out is None:
        return None
    place = user_path(out)
    if place.suffix not in (".json", ".md"):
        raise ConfigError(f"the report is JSON or Markdown, not {place.name}", where="--out", fix="--out report.json")
    return place


def _write(found: Analysis, place: Path) -> None:
    from nitro_cli.analysis import analysis_markdown, save_text
    from nitro_cli.cli import json_document

    document = json_document.document(**found.as_json())
    save_text(place, json_document.dumps(document) if place.suffix == ".json" else analysis_markdown(found))


def _draw(found: Analysis, folder: str | None, projection: str, svg: bool) -> list[Path]:
    if folder is None:
        return []
    from nitro_cli.analysis import save_figures

    return save_figures(found, user_path(folder), projection=projection, suffix=".svg" if svg else ".png")
