"""Predictions of samples: outputs, probabilities, decisions, and what was to be predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nitro_cli.analysis.link_functions import sigmoid, softmax
from nitro_cli.errors import DataError

__all__ = ["Entries", "Prediction", "PredictionOrigin", "concatenate"]


@dataclass(frozen=True)
class PredictionOrigin:
    """Where predictions come from; None is not known.

    Args:
        experiment: the experiment's class.
        run: the run's id.
        checkpoint: the record whose weights were read.
        model_id: the digest of the weights that were read, as `model_id` computes it.
        split: the split's name.
        data: the digest of the split's data, or of the predictions themselves.
        ids: the field that the ids come from; None where they are positions.
        ignore_index: the target that marks what is not to be judged.
        task: how the outputs were read: kind, path of the output, class axis.
    """

    experiment: str | None = None
    run: str | None = None
    checkpoint: str | None = None
    model_id: str | None = None
    split: str | None = None
    data: str | None = None
    ids: str | None = None
    ignore_index: int | None = None
    task: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Entries:
    """The judged entries of a prediction, one per row, in float64. An entry is a sample, or a position in one.

    Args:
        logits: (M, C) logits of a categorical prediction; (M, L) of the others.
        probabilities: alike; None of continuous values.
        decoded: (M,) classes, or (M, L) decisions.
        target: (M,) classes, or (M, L) values, NaN where there is nothing to judge.
        row: (M,) the sample that each belongs to.
        judged: which of all entries these are, flat truth values.
    """

    logits: np.ndarray
    probabilities: np.ndarray | None
    decoded: np.ndarray
    target: np.ndarray
    row: np.ndarray
    judged: np.ndarray


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of N samples; built by `Probabilities.predict` or read by `load_predictions`.

    Args:
        kind: `categorical`, `bernoulli` or `continuous`.
        outputs: logits or values, samples first.
        probabilities: in the shape of the outputs; None of continuous values.
        decoded: class numbers (outputs without the class axis), 0 or 1 per label, or the values themselves.
        ids: one whole number or text per sample.
        labels: names of the classes or labels.
        target: what was to be predicted.
        fields: further values per sample.
        class_axis: the axis of the classes in the outputs; 0 where there is none.
        origin: where it comes from.

    Raises:
        DataError: an array has another number of samples, or ids are neither whole numbers nor text.
    """

    kind: str
    outputs: np.ndarray
    probabilities: np.ndarray | None
    decoded: np.ndarray
    ids: np.ndarray
    labels: tuple[str, ...] | None = None
    target: np.ndarray | None = None
    fields: Mapping[str, np.ndarray] = field(default_factory=dict)
    class_axis: int = -1
    origin: PredictionOrigin = field(default_factory=PredictionOrigin)

    def __post_init__(self) -> None:
        held = {"ids": self.ids, "decoded": self.decoded, "target": self.target, **self.fields}
        for name, array in held.items():
            if array is not None and array.shape[:1] != self.outputs.shape[:1]:
                raise DataError(
                    f"{name} has the shape {array.shape}, the outputs {self.outputs.shape}",
                    why="every array has one entry per sample, samples first",
                )
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iuUS":
            raise DataError(
                f"the ids are {self.ids.dtype}{list(self.ids.shape)}", fix="give one whole number or text per sample"
            )
        shape = self._decided_shape()
        if self.decoded.shape != shape:
            raise DataError(
                f"decoded has the shape {self.decoded.shape}", why=f"decisions of these outputs have {shape}"
            )

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def classes(self) -> int:
        """How many classes or labels there are."""
        return 1 if self.outputs.ndim == 1 else self.outputs.shape[self.class_axis]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where there are no labels."""
        return self.labels if self.labels is not None else tuple(map(str, range(self.classes)))

    @property
    def class_indices(self) -> np.ndarray:
        """The decided classes, int64.

        Raises:
            DataError: the prediction is not categorical.
        """
        if self.kind != "categorical":
            raise DataError(
                f"a {self.kind} prediction decides on no class",
                why="its labels do not exclude each other" if self.kind == "bernoulli" else "its outputs are values",
                fix="use `decoded`",
            )
        return self.decoded

    @property
    def decoded_labels(self) -> np.ndarray:
        """The names of the decided classes.

        Raises:
            DataError: the prediction is not categorical, or has no labels.
        """
        indices = self.class_indices
        if self.labels is None:
            raise DataError("the classes have no names", fix="declare them: Probabilities(kind, labels=...)")
        return np.array(self.labels)[indices]

    @cached_property
    def entries(self) -> Entries:
        """The entries that are judged: those with a target that is neither NaN nor `origin.ignore_index`.

        Raises:
            DataError: there is no target, or it does not fit the outputs.
        """
        if self.target is None:
            raise DataError("the predictions have no target", fix="predict with --target FIELD, or give one")
        return _class_entries(self) if self.kind == "categorical" else _value_entries(self)

    def select(self, rows: np.ndarray) -> Prediction:
        """The prediction of some of the samples, by position or by truth value."""
        return Prediction(
            self.kind,
            self.outputs[rows],
            None if self.probabilities is None else self.probabilities[rows],
            self.decoded[rows],
            self.ids[rows],
            self.labels,
            None if self.target is None else self.target[rows],
            {name: array[rows] for name, array in self.fields.items()},
            self.class_axis,
            self.origin,
        )

    def _decided_shape(self) -> tuple[int, ...]:
        if self.kind != "categorical":
            return self.outputs.shape
        return tuple(np.delete(self.outputs.shape, self.class_axis).tolist())


def concatenate(predictions: Iterable[Prediction]) -> Prediction:
    """Several predictions as one, in order.

    Raises:
        DataError: there are none, or they differ in kind, labels, fields or what they come from.
    """
    parts = list(predictions)
    if not parts:
        raise DataError("there are no predictions to join")
    first = parts[0]
    for part in parts[1:]:
        for name in ("kind", "labels", "class_axis", "origin"):
            if getattr(part, name) != getattr(first, name):
                raise DataError(
                    f"predictions of another {name} cannot be joined",
                    why=f"{getattr(first, name)!r} and {getattr(part, name)!r}",
                )
        if part.fields.keys() != first.fields.keys() or (part.target is None) != (first.target is None):
            raise DataError("predictions with other fields cannot be joined", why=f"{_held(first)} and {_held(part)}")
    return Prediction(
        first.kind,
        _joined([part.outputs for part in parts]),
        None if first.probabilities is None else _joined([p.probabilities for p in parts]),
        _joined([part.decoded for part in parts]),
        _joined([part.ids for part in parts]),
        first.labels,
        None if first.target is None else _joined([part.target for part in parts]),
        {name: _joined([part.fields[name] for part in parts]) for name in first.fields},
        first.class_axis,
        first.origin,
    )


def _held(prediction: Prediction) -> str:
    return ", ".join((["target"] if prediction.target is not None else []) + sorted(prediction.fields)) or "none"


def _joined(arrays: Sequence[Any]) -> np.ndarray:
    if len({(array.shape[1:], array.dtype.kind) for array in arrays}) > 1:
        shown = ", ".join(sorted({f"{array.dtype}{list(array.shape)}" for array in arrays}))
        raise DataError("arrays of other shapes or dtypes cannot be joined", why=shown)
    return np.concatenate(arrays)


def _class_entries(prediction: Prediction) -> Entries:
    target = np.asarray(prediction.target)
    if target.shape != prediction.decoded.shape:
        raise DataError(
            f"the target has the shape {target.shape}, decisions {prediction.decoded.shape}",
            why="a categorical target is one class number per decision",
        )
    if target.dtype.kind not in "iu":
        raise DataError(f"the target is {target.dtype}", fix="give class numbers, 0 to classes - 1")
    flat = target.reshape(-1)
    judged = np.ones(len(flat), bool)
    if prediction.origin.ignore_index is not None:
        judged = flat != prediction.origin.ignore_index
    wrong = np.flatnonzero(judged & ((flat < 0) | (flat >= prediction.classes)))
    per_sample = max(1, len(flat) // max(1, len(target)))
    if len(wrong):
        raise DataError(
            f"the target of row {wrong[0] // per_sample} is {flat[wrong[0]]}",
            why=f"there are {prediction.classes} classes, 0 to {prediction.classes - 1}",
            fix="give the number that marks what is not judged with --ignore-index" if flat[wrong[0]] < 0 else None,
        )
    logits = np.moveaxis(prediction.outputs, prediction.class_axis, -1).reshape(-1, prediction.classes)
    rows = np.repeat(np.arange(len(target)), per_sample)[: len(flat)]
    wide = logits[judged].astype(np.float64)
    return Entries(
        wide,
        softmax(wide),
        prediction.decoded.reshape(-1)[judged].astype(np.int64),
        flat[judged].astype(np.int64),
        rows[judged],
        judged,
    )


def _value_entries(prediction: Prediction) -> Entries:
    target = np.asarray(prediction.target)
    if target.shape != prediction.outputs.shape and target.size == prediction.outputs.size:
        target = target.reshape(prediction.outputs.shape)  # (N,) for (N, 1)
    if target.shape != prediction.outputs.shape:
        raise DataError(f"the target has the shape {target.shape}, the outputs {prediction.outputs.shape}")
    if target.dtype.kind not in "biuf":
        raise DataError(f"the target is {target.dtype}", fix="give numbers")
    axis = prediction.class_axis if prediction.outputs.ndim > 1 else -1

    def flat(array: np.ndarray) -> np.ndarray:
        columns = array[:, None] if array.ndim == 1 else np.moveaxis(array, axis, -1)
        return columns.reshape(-1, prediction.classes).astype(np.float64)

    logits, values, decided = flat(prediction.outputs), flat(target), flat(prediction.decoded)
    bernoulli = prediction.kind == "bernoulli"
    rows = np.repeat(np.arange(len(target)), max(1, len(values) // max(1, len(target))))[: len(values)]
    infinite = np.isinf(values).any(axis=1)
    outside = bernoulli & ((values < 0) | (values > 1)).any(axis=1)
    if infinite.any() or np.any(outside):
        at = int(np.flatnonzero(infinite | outside)[0])
        why = "a target of labels lies in 0 to 1, NaN where there is none" if bernoulli else "it is not finite"
        raise DataError(f"the target of row {rows[at]} is {values[at].tolist()}", why=why)
    judged = ~np.isnan(values).all(axis=1)
    shares = sigmoid(logits[judged]) if bernoulli else None
    return Entries(logits[judged], shares, decided[judged], values[judged], rows[judged], judged)
