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
    Probabilities,
    concatenate,
    model_id,
)
from nitro_cli.errors import DataError, nearest
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

__all__ = ["LoadedFrom", "OutputMeaning", "SplitPredictions", "prediction_origin", "predictions"]


@dataclass(frozen=True)
class OutputMeaning:
    """What the outputs of a forward are, and which fields of the batches go with them.

    Args:
        spec: how the outputs become probabilities and decisions.
        output: the path of the leaf to read; None where there is one.
        target: the field of what was to be predicted; None keeps no target.
        ids: the field of the ids; None for positions.
        ignore_index: the target that marks what is not to be judged.
    """

    spec: Probabilities
    output: str | None = None
    target: str | None = None
    ids: str | None = None
    ignore_index: int | None = None

    def kept(self, fields: Sequence[str] = ()) -> list[str]:
        """The fields to keep of each batch: those named, and the target."""
        return list(dict.fromkeys((*fields, *([self.target] if self.target is not None else []))))

    def read(self, batch: PredictedBatch, at: int, fields: Sequence[str], origin: PredictionOrigin) -> Prediction:
        """The prediction that some outputs are.

        Args:
            batch: the outputs, and the rows that they are of.
            at: the position of the first row.
            fields: further fields that are kept.
            origin: where the outputs come from.
        """
        outputs, rows = self.of(batch.outputs), batch.rows
        return self.spec.predict(
            outputs,
            ids=np.arange(at, at + len(outputs)) if rows.ids is None else rows.ids,
            target=None if self.target is None else rows.kept[self.target],
            fields={name: rows.kept[name] for name in fields},
            origin=origin,
        )

    def of(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs to read.

        Raises:
            DataError: there is no such output, or several and none is named.
        """
        name = self.output if self.output is not None or len(outputs) > 1 else next(iter(outputs))
        if name is not None and name in outputs:
            return outputs[name]
        raise DataError(
            "several outputs, and nothing says which to read" if name is None else f"there is no output {name}",
            why=f"forward gives {', '.join(outputs)}",
            nearest=[] if name is None else nearest(name, outputs),
            fix="name the logits: output=NAME, --logits NAME",
        )


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
    kept = meaning.kept(fields)
    source: RowSource = (
        SplitRows(plan, data, kept, meaning.ids) if isinstance(data, str) else BatchRows(data, kept, meaning.ids)
    )
    origin = prediction_origin(plan, state, source, meaning, weights)

    def each() -> Iterator[Prediction]:
        at = 0
        for batch in predicted_batches(plan, predict, source):
            yield meaning.read(batch, at, fields, origin)
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
        self._source = SplitRows(plan, split, meaning.kept(), meaning.ids)
        self._meaning, self._check, self._at = meaning, check, 0
        self._origin = prediction_origin(plan, state, self._source, meaning, weights)
        self._held: list[Prediction] = []

    def add(self, batch: Mapping[str, Any], outputs: Any) -> None:
        """Take a batch of the pass and what forward gave for it."""
        read = PredictedBatch(outputs_by_path(outputs), self._source.read(batch, self._at))
        self._held.append(self._meaning.read(read, self._at, (), self._origin))
        if not self._at:
            self._check(self._held[0])
        self._at += len(self._held[-1])

    def whole(self) -> Prediction:
        """The prediction of the split."""
        return concatenate(self._held)


def prediction_origin(
    plan: Plan, state: RunState, source: RowSource, meaning: OutputMeaning | None, weights: LoadedFrom
) -> PredictionOrigin:
    """Where predictions come from.

    Args:
        plan, state: of the run.
        source: of the rows.
        meaning: what the outputs are; None where nothing says it.
        weights: which they are.
    """
    origin = PredictionOrigin(
        experiment=plan.settings.resolved.class_name,
        run=weights.run,
        # What leaves holds no path of this machine.
        checkpoint=None if weights.checkpoint is None else Path(weights.checkpoint).name,
        model_id=_weights_id(plan, state),
        split=source.split,
        data=source.data,
    )
    if meaning is None:
        return origin
    task = {"kind": meaning.spec.kind, "output": meaning.output or "outputs", "class_axis": meaning.spec.class_axis}
    return replace(origin, ids=meaning.ids, ignore_index=meaning.ignore_index, task=task)


def _weights_id(plan: Plan, state: RunState) -> str:
    """The digest of the weights that a prediction reads: the parameters in use and the layer state."""
    read = {"params": eval_params(plan.experiment, state.train), "state": state.train.state}
    leaves = jax.tree_util.tree_flatten_with_path(read)[0]
    return model_id((path_text(path), _on_host(leaf)) for path, leaf in leaves)


def _on_host(leaf: Any) -> np.ndarray:
    if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
