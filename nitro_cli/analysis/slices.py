"""The same figures on parts of the data: by a field, by edges of a field, by class, decision or confidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis.metric_table import confidence_and_right
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.reliability import ece, reliability_bins, top_1
from nitro_cli.errors import ConfigError, DataError, nearest

__all__ = ["MOST_VALUES", "Slice", "SliceTable", "slice_table", "wilson_interval"]

MOST_VALUES = 50
_OWN = ("class", "decoded", "confidence")
_Z95 = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""


@dataclass(frozen=True)
class Slice:
    """One part of the data.

    Args:
        name: such as `age<30` or `class=cat`.
        rows: how many entries it has.
        score: accuracy (of labels: of whole rows), or the mean absolute residual; None of too few rows.
        ece: the expected calibration error; None of too few rows and of continuous values.
        difference: the score minus that of the whole.
        interval: of an accuracy, the 95% interval of Wilson (1927).
    """

    name: str
    rows: int
    score: float | None
    ece: float | None
    difference: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class SliceTable:
    """The parts by one description.

    Args:
        by: the description.
        score: `accuracy` or `mae`.
        whole: the score of all entries.
        slices: the parts that have rows.
        compared: how many had rows enough to be compared: the worst of many is low by chance.
    """

    by: str
    score: str
    whole: float | None
    slices: tuple[Slice, ...]
    compared: int


def slice_table(prediction: Prediction, by: str, *, bins: int = 10, min_rows: int = 20) -> SliceTable:
    """Cut a prediction into parts and score each.

    Args:
        prediction: with targets.
        by: a field of at most 50 values; `field=30,60`, edges that belong to the part above; `class`, `decoded` or
            `confidence`; or several joined by `*`.
        bins: bins of the calibration error.
        min_rows: parts with fewer entries have no scores.

    Raises:
        ConfigError: the description cannot be read.
        DataError: there is no such field, or it has too many values.
    """
    entries = prediction.entries
    place, names = np.zeros(len(entries.row), np.int64), [""]
    for text in by.split("*"):
        part, own = _cut(prediction, text.strip(), bins)
        place = place * len(own) + part
        names = [f"{left} and {right}" if left else right for left in names for right in own]
    right = _right(prediction)
    whole = float(right.mean()) if len(right) else None
    made = []
    for index in np.unique(place).tolist():
        inside = place == index
        made.append(_scored(prediction, names[index], inside, right, whole, bins, min_rows))
    compared = sum(one.score is not None for one in made)
    score = "mae" if prediction.kind == "continuous" else "accuracy"
    return SliceTable(by, score, whole, tuple(made), compared)


def wilson_interval(right: int, rows: int) -> tuple[float, float]:
    """The 95% interval of a share by Wilson's score (1927); 9 of 10 give .5958 to .9821."""
    share, z2 = right / rows, _Z95**2
    center = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = _Z95 / (1 + z2 / rows) * (share * (1 - share) / rows + z2 / (4 * rows**2)) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)


def _scored(
    prediction: Prediction,
    name: str,
    inside: np.ndarray,
    right: np.ndarray,
    whole: float | None,
    bins: int,
    min_rows: int,
) -> Slice:
    rows = int(inside.sum())
    if rows < max(1, min_rows) or whole is None:
        return Slice(name, rows, None, None, None, None)
    score = float(right[inside].mean())
    if prediction.kind == "continuous":
        return Slice(name, rows, score, None, score - whole, None)
    error = ece(reliability_bins(*_compared(prediction, inside), bins))
    interval = wilson_interval(int(right[inside].sum()), rows)
    return Slice(name, rows, score, error, score - whole, interval)


def _compared(prediction: Prediction, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    entries = prediction.entries
    if prediction.kind == "categorical":
        confidence, right = confidence_and_right(entries, "categorical")
        return confidence[inside], right[inside]
    assert entries.probabilities is not None
    shares, target = entries.probabilities[inside], entries.target[inside]
    judged = ~np.isnan(target)
    return shares[judged], target[judged]


def _right(prediction: Prediction) -> np.ndarray:
    """Per entry: whether the decision is right, or how far the values are off."""
    entries = prediction.entries
    if prediction.kind == "categorical":
        return (entries.decoded == entries.target).astype(np.float64)
    if prediction.kind == "bernoulli":
        return ((entries.decoded == entries.target) | np.isnan(entries.target)).all(1).astype(np.float64)
    return np.nanmean(np.abs(entries.decoded - entries.target), axis=1)


def _cut(prediction: Prediction, text: str, bins: int) -> tuple[np.ndarray, list[str]]:
    """The part that each entry falls into, and the names of the parts."""
    name, equals, edges = text.partition("=")
    name = name.strip()
    values = _values(prediction, name)
    if name == "confidence" and not equals:
        return _between(name, values, [i / bins for i in range(1, bins)])
    if equals:
        return _between(name, values, _edges(text, edges))
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) > MOST_VALUES:
        raise DataError(
            f"the field {name} has {len(distinct)} values",
            why=f"at most {MOST_VALUES} are compared one by one",
            fix=f"give edges, such as --slice {name}={distinct[len(distinct) // 2]}",
        )
    words: Callable[[Any], str] = str
    if name in ("class", "decoded"):
        words = prediction.names.__getitem__
    return place, [f"{name}={words(value)}" for value in distinct.tolist()]


def _values(prediction: Prediction, name: str) -> np.ndarray:
    entries = prediction.entries
    if name in _OWN and name not in prediction.fields:
        if prediction.kind != "categorical":
            raise DataError(f"a {prediction.kind} prediction has no {name} to slice by", fix="slice by a field")
        assert entries.probabilities is not None
        own = {"class": entries.target, "decoded": entries.decoded}
        return own[name] if name in own else top_1(entries.probabilities)[1]
    if name not in prediction.fields:
        held = ", ".join((*prediction.fields, *_OWN))
        raise DataError(
            f"the predictions have no field {name}",
            why=f"they have {held}",
            nearest=nearest(name, (*prediction.fields, *_OWN)),
            fix=f"predict with --with {name}",
        )
    values = prediction.fields[name]
    if values.ndim != 1:
        raise DataError(f"the field {name} has the shape {values.shape}", why="slices are by one value per sample")
    return values[entries.row]


def _edges(text: str, given: str) -> list[float]:
    try:
        edges = [float(edge) for edge in given.split(",")]
    except ValueError:
        edges = []
    if not edges or not np.isfinite(edges).all() or sorted(set(edges)) != edges:
        raise ConfigError(f"--slice {text} has no rising edges", fix="write them so: --slice age=30,60")
    return edges


def _between(name: str, values: np.ndarray, edges: Sequence[float]) -> tuple[np.ndarray, list[str]]:
    if values.dtype.kind not in "biuf":
        raise DataError(f"the field {name} is {values.dtype}", why="edges are for numbers", fix=f"--slice {name}")
    names = [f"{name}<{edges[0]:g}"]
    names += [f"{low:g}<={name}<{high:g}" for low, high in itertools.pairwise(edges)]
    names += [f"{name}>={edges[-1]:g}", f"{name} missing"]
    place = np.searchsorted(edges, values, side="right")
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    return np.where(missing, len(names) - 1, place), names
