"""Predictions of a run: its outputs read as what they mean, with ids, targets and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.analysis import (
    OutputFile,
    Prediction,
    PredictionMeta,
    PredictionOrigin,
    PredictionStream,
    check_file_name,
    concatenate,
    meta_array,
    model_id,
)
from nitro_cli.errors import ConfigError
from nitro_cli.run.output_meaning import OutputMeaning
from nitro_cli.run.plan import Plan
from nitro_cli.run.prediction_rows import (
    BatchRows,
    PredictedBatch,
    RowSource,
    SplitRows,
    outputs_by_path,
    predicted_batches,
)
from nitro_cli.run.state import RunState, eval_params
from nitro_cli.text import path_text

__all__ = [
    "LoadedFrom",
    "SplitPredictions",
    "prediction_origin",
    "predictions",
    "read_prediction",
    "write_predictions",
]


@dataclass(frozen=True)
class LoadedFrom:
    """Which weights predictions are of: the record that they were loaded from, and its run, where these are known."""

    checkpoint: str | None = None
    run: str | None = None


def predictions(
    plan: Plan,
    state: RunState,
    predict: Callable[[Any], Any],
    data: Any,
    meaning: OutputMeaning,
    weights: LoadedFrom,
    fields: Sequence[str] = (),
) -> PredictionStream:
    """One prediction per batch of a split, or of an iterable of batches.

    Args:
        plan, state: of the run.
        predict: gives the outputs of each of an iterable of batches, lazily.
        data: the name of a split, or an iterable of batches.
        meaning: what the outputs are.
        weights: which they are.
        fields: further fields that are kept.

    Raises:
        NotFoundError, DataError: there is no such split or field.
    """
    source: RowSource = (
        SplitRows(plan, data, meaning, fields) if isinstance(data, str) else BatchRows(data, meaning, fields)
    )
    origin = prediction_origin(plan, state, source, weights)

    def each() -> Iterator[Prediction]:
        at = 0
        for batch in predicted_batches(plan, predict, source):
            yield read_prediction(batch, meaning, at, origin)
            at += len(next(iter(batch.outputs.values())))

    return PredictionStream(each())


class SplitPredictions:
    """Gathers the predictions of a split while a pass over it goes on for another purpose.

    Args:
        plan, state: of the run.
        split: the split's name.
        meaning: what the outputs are.
        weights: which they are.
        check: called with the first prediction, before the pass goes on.
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        split: str,
        meaning: OutputMeaning,
        weights: LoadedFrom,
        check: Callable[[Prediction], object],
    ) -> None:
        self._source = SplitRows(plan, split, meaning)
        self._meaning, self._check, self._at = meaning, check, 0
        self._origin = prediction_origin(plan, state, self._source, weights)
        self._held: list[Prediction] = []

    def add(self, batch: Mapping[str, Any], outputs: Any) -> None:
        """Take a batch of the pass and what forward gave for it."""
        read = PredictedBatch(outputs_by_path(outputs), self._source.read(batch, self._at))
        self._held.append(read_prediction(read, self._meaning, self._at, self._origin))
        if not self._at:
            self._check(self._held[0])
        self._at += len(self._held[-1])

    def whole(self) -> Prediction:
        """The prediction of the split."""
        return concatenate(self._held)


def read_prediction(batch: PredictedBatch, meaning: OutputMeaning, at: int, origin: PredictionOrigin) -> Prediction:
    """The prediction that some outputs are.

    Args:
        batch: the outputs, and the rows that they are of.
        meaning: what the outputs are; with a spec.
        at: the position of the first row.
        origin: where the outputs come from.

    Raises:
        DataError: there is no such output, or it does not fit what it is said to be.
        NonFiniteOutputError: an output is NaN or infinite.
    """
    outputs, rows, spec = meaning.of(batch.outputs), batch.rows, meaning.spec
    assert spec is not None
    ids = np.arange(at, at + len(outputs)) if rows.ids is None else rows.ids
    made = spec.predict(outputs, ids=ids, target=rows.target, fields=rows.kept, origin=origin)
    return made if meaning.decode is None else replace(made, decoded=meaning.decode(made.outputs))


def write_predictions(
    file: OutputFile,
    batches: Iterable[PredictedBatch],
    meaning: OutputMeaning,
    origin: PredictionOrigin,
    fields: Sequence[str] = (),
    judged: Callable[[Prediction], Mapping[str, np.ndarray]] = lambda prediction: {},
    **artefacts: str | None,
) -> int:
    """Write outputs, what they mean where that is told, and what they are of; returns how many rows.

    Args:
        file: to write to.
        batches: of `predicted_batches`.
        meaning: what the outputs are.
        origin: where they come from.
        fields: further fields that are written.
        judged: further values per row, by name.
        artefacts: ids of what `judged` applies, by the name that a file knows.

    Raises:
        NonFiniteOutputError: an output has no probability.
        DataError: there is no such output, or it does not fit what it is said to be.
        ConfigError: an output or a field has a name that the file itself uses.
    """
    for name in fields:
        check_file_name(name, "further fields")
    samples, spec = 0, meaning.spec
    for batch in batches:
        arrays = _file_arrays(batch, fields)
        if spec is not None:
            made = read_prediction(batch, meaning, samples, origin)
            if made.probabilities is not None:
                arrays["probabilities"] = made.probabilities
            arrays["decoded"] = made.decoded
            arrays |= judged(made)
        file.write(arrays)
        samples += len(next(iter(batch.outputs.values())))
    names = ("experiment", "run", "checkpoint", "model_id", "split", "data", "ids")
    known: dict[str, Any] = {name: getattr(origin, name) for name in names}
    if spec is not None:
        known |= {"task": {**(origin.task or {}), "ignore_index": origin.ignore_index}, "labels": spec.labels}
    file.write({"meta": meta_array(PredictionMeta(**(known | artefacts)))})
    return samples


def _file_arrays(batch: PredictedBatch, fields: Sequence[str]) -> dict[str, np.ndarray]:
    """Ids, outputs, targets and further fields of some rows, by their names in a file."""
    rows = batch.rows
    arrays = {} if rows.ids is None else {"ids": rows.ids}
    for name, leaf in batch.outputs.items():
        check_file_name(name, "the outputs of forward")
        arrays[name] = leaf
    if rows.target is not None:
        arrays["target"] = rows.target
    for name in fields:
        if name in arrays:
            raise ConfigError(f"{name} is an output too", where="further fields", fix="rename the field")
        arrays[name] = rows.kept[name]
    return arrays


def prediction_origin(plan: Plan, state: RunState, source: RowSource, weights: LoadedFrom) -> PredictionOrigin:
    """Where predictions come from, and how they are read.

    Args:
        plan, state: of the run.
        source: of the rows.
        weights: which they are.
    """
    meaning = source.meaning
    origin = PredictionOrigin(
        experiment=plan.settings.resolved.class_name,
        run=weights.run,
        # What leaves holds no path of this machine.
        checkpoint=None if weights.checkpoint is None else Path(weights.checkpoint).name,
        model_id=weights_id(plan, state),
        split=source.split,
        data=source.data,
        ids=meaning.ids,
        ignore_index=meaning.marked,
    )
    if meaning.spec is None:
        return origin
    task = {"kind": meaning.spec.kind, "output": meaning.output or "outputs", "class_axis": meaning.spec.class_axis}
    return replace(origin, task=task)


def weights_id(plan: Plan, state: RunState) -> str:
    """The digest of the weights that a prediction reads: the parameters in use and the layer state."""
    read = {"params": eval_params(plan.experiment, state.train), "state": state.train.state}
    leaves = jax.tree_util.tree_flatten_with_path(read)[0]
    return model_id((path_text(path), _on_host(leaf)) for path, leaf in leaves)


def _on_host(leaf: Any) -> np.ndarray:
    if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
