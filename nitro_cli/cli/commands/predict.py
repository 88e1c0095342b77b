"""`nitro predict`: forward on new data, or on a split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from nitro_cli.cli.declared_outputs import DeclaredOutputs, with_declared_outputs
from nitro_cli.cli.evaluation import open_handle
from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import (
    CheckpointChoice,
    ExperimentCode,
    Force,
    OptionalTarget,
    Preset,
    RunChoice,
    Sets,
    Unsets,
    WeightsOption,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.predicting import InputRows
from nitro_cli.cli.prediction_options import CalibratorChoice, OverrideName, PolicyChoice
from nitro_cli.cli.prediction_subject import analysis_folder, load_calibrator, load_policy
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.targets import Overrides, Target, resolve_target
from nitro_cli.cli.written_predictions import PredictionWriting
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.cli.prediction_files import InputFields
    from nitro_cli.experiment import Experiment
    from nitro_cli.nitro import Nitro
    from nitro_cli.run import OutputMeaning, RowSource

__all__ = ["run"]


@with_declared_outputs
@with_knob_flags(("eval_weights", "n_devs"))
def run(
    output: Output,
    declared: DeclaredOutputs,
    target: OptionalTarget = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="F", help="The data: an .npz with one array per field, or an .npy."),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="The data: a split of the experiment.")
    ] = None,
    out: Annotated[str, typer.Option("--output", "-o", metavar="F", help="The .npz to write.")] = ...,  # type: ignore[assignment]
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="FIELD", help="Also write this field of the data; may be repeated."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, metavar="N", help="Samples per batch of --input.")
    ] = 128,
    calibrator: CalibratorChoice = None,
    policy: PolicyChoice = None,
    override: OverrideName = None,
    force: Force = False,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
    **knobs: object,
) -> int:
    """Run the forward of an experiment on new data or on a split, batch by batch, and write its outputs.

    Of --input only the fields that forward declares, and those named here, are read. The outputs are an .npz with one
    array per leaf, named by its path; a forward that returns one array gives `outputs`. `meta` says which weights and
    data they are of, and `nitro analyze` reads it. With a task or --kind, probabilities and decisions are written too;
    with a calibrator or a policy also what they say. The file appears when it is whole.
    """
    from nitro_cli.analysis import OutputFile
    from nitro_cli.cli.stop_signals import raise_if_stopped

    if (input_ is None) == (split is None):
        raise ConfigError("predict needs --input or --split, one of the two", fix="give the data: --split test")
    with progress_shown(output):
        overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
        found = resolve_target(target, overrides, weights=weights, run=run_id, checkpoint=checkpoint)
        folder, e, kept = analysis_folder(found), found.resolved.experiment, tuple(with_ or ())
        artefacts = load_calibrator(calibrator, folder), load_policy(policy, folder)
        meaning = declared.meaning(e) if artefacts == (None, None) else declared.needed(e)
        source = None if input_ is None else _fields_of(input_, e, (*kept, *declared.fields), meaning)
        if source is not None:
            meaning = meaning.where_there(source.fields, declared.fields)
        writing = PredictionWriting(meaning, kept, *artefacts, override)
        with OutputFile(user_path(out), force=force, ready=raise_if_stopped) as file:
            nitro = open_handle(output, found, data={} if source is not None else None)
            with _told_as_trained(output, source, found):
                samples = writing.write(file, nitro, found, _rows(nitro, source, split, batch_size, meaning, kept))
    if output.json:
        output.document(
            experiment=found.resolved.class_name, run=found.run, checkpoint=found.checkpoint or found.weights,
            input=None if source is None else source.path, split=split, output=file.path, samples=samples,
            arrays=file.document(),
        )  # fmt: skip
        return ExitCode.OK
    output.line(str(file.path))
    output.note(f"{samples} samples: {file.told()}")
    return ExitCode.OK


def _fields_of(text: str, e: Experiment, named: tuple[str, ...], meaning: OutputMeaning) -> InputFields:
    """The file of `--input`, with what forward takes, the fields that were named, and those of the task that it has."""
    from nitro_cli.cli.prediction_files import InputFields
    from nitro_cli.experiment import HookTable

    signature = HookTable(e).fields("forward")
    beside = (*meaning.fields, *meaning.optional_fields)
    return InputFields(user_path(text), signature.required, signature.optional, named, beside)


def _rows(
    nitro: Nitro,
    source: InputFields | None,
    split: str | None,
    batch_size: int,
    meaning: OutputMeaning,
    kept: tuple[str, ...],
) -> RowSource:
    from nitro_cli.run import SplitRows

    if source is not None:
        return InputRows(source, min(batch_size, max(source.samples, 1)), meaning, kept)
    assert split is not None
    return SplitRows(nitro.plan, split, meaning, kept)


@contextlib.contextmanager
def _told_as_trained(output: Output, source: InputFields | None, target: Target) -> Iterator[None]:
    """Where forward works, inputs unlike those of training are only told; where it fails, the handle says it."""
    unlike = [] if source is None else _unlike_training(source, target)
    yield
    for text in unlike:
        output.note(text)


def _unlike_training(source: InputFields, target: Target) -> list[str]:
    """The fields of another dtype or shape than the batches of training, which the checkpoint knows."""
    from nitro_cli.checkpoints import record_info

    trained = record_info(target.checkpoint).meta.batch_fields if target.checkpoint is not None else {}
    told = []
    for name, (shape, dtype) in source.types().items():
        known = trained.get(name)
        if known is not None and (known.dtype, known.shape) != (dtype, list(shape[1:])):
            was = f"{known.dtype}[{', '.join(['n', *map(str, known.shape)])}]"
            told.append(f"input {name} is {dtype}{list(shape)}, the model was trained with {was}")
    return told
