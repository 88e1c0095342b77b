"""`nitro predict`: forward on new data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.targets import Overrides, Target, resolve_target
from nitro_cli.errors import DataError, ExitCode, NitroError
from nitro_cli.text import message_of, path_text, user_path

if TYPE_CHECKING:
    import numpy as np

    from nitro_cli.cli.prediction_files import InputFields, OutputFile
    from nitro_cli.run import Nitro

__all__ = ["run"]


@with_knob_flags(("eval_weights", "n_devs"))
def run(
    output: Output,
    target: OptionalTarget = None,
    input_: Annotated[
        str, typer.Option("--input", "-i", metavar="F", help="The data: an .npz with one array per field, or an .npy.")
    ] = ...,  # type: ignore[assignment]
    out: Annotated[str, typer.Option("--output", "-o", metavar="F", help="The .npz to write.")] = ...,  # type: ignore[assignment]
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Samples per batch.")] = 128,
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
    """Run the forward of an experiment on new data, batch by batch, and write its outputs.

    Only the fields that forward declares are read. The outputs are an .npz with one array per leaf, named by its path;
    a forward that returns one array gives `outputs`. The file appears when it is whole.
    """
    from nitro_cli.cli.prediction_files import InputFields, OutputFile
    from nitro_cli.experiment import HookTable

    with progress_shown(output):
        overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
        found = resolve_target(target, overrides, weights=weights, run=run_id, checkpoint=checkpoint)
        signature = HookTable(found.resolved.experiment).fields("forward")
        source = InputFields(user_path(input_), signature.required, signature.optional)
        with OutputFile(user_path(out), source.samples, force=force) as file:
            nitro = open_handle(output, found, data={})
            with _told_as_trained(output, source, found):
                _stream(nitro, source, file, min(batch_size, max(source.samples, 1)))
    if output.json:
        output.document(
            experiment=found.resolved.class_name, run=found.run, checkpoint=found.checkpoint or found.weights,
            input=source.path, output=file.path, samples=source.samples, arrays=file.document(),
        )  # fmt: skip
        return ExitCode.OK
    output.line(str(file.path))
    output.note(f"{source.samples} samples: {file.told()}")
    return ExitCode.OK


@contextlib.contextmanager
def _told_as_trained(output: Output, source: InputFields, target: Target) -> Iterator[None]:
    """Inputs unlike those of training explain a forward that fails; where it works, they are only told.

    Raises:
        DataError: it failed, and an input differs.
    """
    unlike = _unlike_training(source, target)
    try:
        yield
    except NitroError:
        raise
    except Exception as error:
        if not unlike:
            raise
        lines = message_of(error).strip().splitlines() or [type(error).__name__]
        raise DataError("; ".join(unlike), where=str(source.path), why=f"forward fails: {lines[0]}") from error
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


def _stream(nitro: Nitro, source: InputFields, file: OutputFile, size: int) -> None:
    for outputs in nitro.predict(source.batches(size)):
        file.write(_named(outputs))


def _named(outputs: Any) -> dict[str, np.ndarray]:
    """The leaves of an output tree by path."""
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
    return {path_text(path) or "outputs": leaf for path, leaf in leaves}
