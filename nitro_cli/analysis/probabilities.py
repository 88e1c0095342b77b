"""What raw outputs mean: classes that exclude each other, labels that do not, or plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis.link_functions import sigmoid, softmax
from nitro_cli.analysis.prediction import Prediction, PredictionOrigin
from nitro_cli.errors import ConfigError, DataError, NonFiniteOutputError, nearest

__all__ = ["KINDS", "Probabilities"]

KINDS = ("categorical", "bernoulli", "continuous")


@dataclass(frozen=True)
class Probabilities:
    """How outputs become probabilities and decisions.

    Args:
        kind: `categorical` (softmax over the class axis, decided by the first largest), `bernoulli` (a sigmoid per
            output, decided at 0.5) or `continuous` (no probabilities; the values are the decision).
        class_axis: the axis of the classes or labels; never axis 0, which is the samples.
        labels: their names in order, unique, one per class.

    Raises:
        ConfigError: the kind is none of these, the axis is the samples', or the labels are no unique names.

    Example:
        >>> Probabilities("categorical", labels=("cat", "dog")).predict(np.array([[2.0, 0.0]])).decoded_labels
        array(['cat'], dtype='<U3')
    """

    kind: str
    class_axis: int = -1
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            close = nearest(self.kind, KINDS)
            raise ConfigError(f"there is no kind {self.kind!r}", nearest=close, fix=f"one of {', '.join(KINDS)}")
        if self.class_axis == 0 or isinstance(self.class_axis, bool) or not isinstance(self.class_axis, int):
            raise ConfigError(
                f"class_axis is {self.class_axis!r}", why="axis 0 is the samples", fix="give another axis"
            )
        if self.labels is None:
            return
        object.__setattr__(self, "labels", tuple(self.labels))
        wrong = [label for label in self.labels if not isinstance(label, str) or not label]
        twice = sorted({label for label in self.labels if self.labels.count(label) > 1})
        if wrong or twice:
            why = f"{wrong[0]!r} is no name" if wrong else f"{twice[0]!r} is there twice"
            raise ConfigError("the labels do not name each class once", why=why)

    def predict(
        self,
        outputs: Any,
        *,
        ids: Any = None,
        target: Any = None,
        decoded: Any = None,
        fields: Mapping[str, Any] | None = None,
        origin: PredictionOrigin | None = None,
    ) -> Prediction:
        """The prediction that these outputs are.

        Args:
            outputs: logits or values, samples first: (N, ..., C), (N, L), or (N,) for one label or target.
                Probabilities are computed and given in their dtype: float16 is computed in float32, bfloat16 is given
                as float32, and whole numbers give float64.
            ids: one whole number or text per sample; 0 to N - 1 when None.
            target: what was to be predicted, samples first.
            decoded: the decisions, where a task made them.
            fields: further values per sample.
            origin: where the outputs come from.

        Raises:
            NonFiniteOutputError: an output is NaN or infinite; its row is named.
            DataError: shapes, labels or ids do not fit the outputs.
        """
        logits = _real(np.asarray(outputs))
        axis = self._axis(logits)
        _check_finite(logits, None if ids is None else np.asarray(ids))
        shares = self._shares(logits, axis)
        decided = self._decided(logits, axis) if decoded is None else np.asarray(decoded)
        return Prediction(
            kind=self.kind,
            outputs=logits,
            probabilities=shares,
            decoded=decided,
            ids=np.arange(len(logits)) if ids is None else np.asarray(ids),
            labels=self.labels,
            target=None if target is None else np.asarray(target),
            fields={name: np.asarray(value) for name, value in (fields or {}).items()},
            class_axis=axis,
            origin=PredictionOrigin() if origin is None else origin,
        )

    def _axis(self, logits: np.ndarray) -> int:
        """The class axis, not negative; the last one stands in where outputs have the samples' axis alone."""
        if logits.ndim == 0:
            raise DataError("the outputs have no axis of samples", why="they are one number")
        if logits.ndim == 1:
            if self.kind == "categorical":
                raise DataError("the outputs have no axis of classes", why=f"their shape is {logits.shape}")
            classes, axis = 1, 0
        else:
            axis = self.class_axis + logits.ndim if self.class_axis < 0 else self.class_axis
            if not 0 < axis < logits.ndim:
                raise DataError(
                    f"the outputs have no class axis {self.class_axis}", why=f"their shape is {logits.shape}"
                )
            classes = logits.shape[axis]
        if self.kind == "categorical" and classes < 2:
            raise DataError("there are fewer than two classes", why=f"the outputs have the shape {logits.shape}")
        if self.labels is not None and len(self.labels) != classes:
            raise DataError(
                f"{len(self.labels)} labels name {classes} classes", why=f"the outputs have the shape {logits.shape}"
            )
        return axis

    def _shares(self, logits: np.ndarray, axis: int) -> np.ndarray | None:
        if self.kind == "continuous":
            return None
        wide = logits.astype(np.float32) if logits.dtype == np.float16 else logits
        found = softmax(wide, axis) if self.kind == "categorical" else sigmoid(wide)
        return found.astype(logits.dtype)

    def _decided(self, logits: np.ndarray, axis: int) -> np.ndarray:
        if self.kind == "categorical":
            return logits.argmax(axis).astype(np.int32)
        return (logits >= 0).astype(np.int32) if self.kind == "bernoulli" else logits


def _real(outputs: np.ndarray) -> np.ndarray:
    if outputs.dtype.kind == "f":
        return outputs
    if outputs.dtype.kind in "iu":
        return outputs.astype(np.float64)
    if "float" in outputs.dtype.name:  # bfloat16 and its like, which numpy does not know
        return outputs.astype(np.float32)
    raise DataError(f"the outputs are {outputs.dtype}", fix="give real numbers")


def _check_finite(logits: np.ndarray, ids: np.ndarray | None) -> None:
    finite = np.isfinite(logits)
    if finite.all():
        return
    rows = np.flatnonzero(~finite.reshape(len(logits), -1).all(axis=1))
    value = logits[rows[0]][~finite[rows[0]]].flat[0] if logits.ndim > 1 else logits[rows[0]]
    named = f" (id {ids[rows[0]]})" if ids is not None and ids.shape[:1] == logits.shape[:1] else ""
    raise NonFiniteOutputError(
        f"an output of row {rows[0]}{named} is {value}",
        why=f"{len(rows)} of {len(logits)} rows hold a value that is not finite, which has no probability",
        fix="mask a class with a large negative number, such as -1e9",
    )
