"""Predictions of a run: its outputs read as what they mean, with ids, targets and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.analysis import (
    Prediction,
    PredictionOrigin,
    PredictionStream,
    concatenate,
    model_id,
)
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

__all__ = ["LoadedFrom", "SplitPredictions", "prediction_origin", "predictions", "read_prediction"]


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
        model_id=_weights_id(plan, state),
        split=source.split,
        data=source.data,
        ids=meaning.ids,
        ignore_index=meaning.marked,
    )
    if meaning.spec is None:
        return origin
    task = {"kind": meaning.spec.kind, "output": meaning.output or "outputs", "class_axis": meaning.spec.class_axis}
    return replace(origin, task=task)


def _weights_id(plan: Plan, state: RunState) -> str:
    """The digest of the weights that a prediction reads: the parameters in use and the layer state."""
    read = {"params": eval_params(plan.experiment, state.train), "state": state.train.state}
    leaves = jax.tree_util.tree_flatten_with_path(read)[0]
    return model_id((path_text(path), _on_host(leaf)) for path, leaf in leaves)


def _on_host(leaf: Any) -> np.ndarray:
    if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
