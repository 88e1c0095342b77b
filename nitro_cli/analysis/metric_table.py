"""Every metric that a kind of prediction allows, by name, with the reason where one is undefined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis import classification, ranking, regression, reliability
from nitro_cli.analysis.prediction import Entries, Prediction

__all__ = ["MetricTable", "confidence_and_right", "metrics_of"]

_NO_ROWS = "no row has a target"
_ONE_CLASS = "the targets or the decisions are one class throughout"
_SOFT = "a target is neither 0 nor 1"
_CONSTANT = "a target is constant, and has no variance"
_K = (5,)


@dataclass(frozen=True)
class MetricTable:
    """Metrics by name.

    Args:
        values: numbers; None where undefined.
        reasons: why, by the name of each undefined metric.
    """

    values: dict[str, float | None]
    reasons: dict[str, str]


def metrics_of(prediction: Prediction, bins: int = 10) -> MetricTable:
    """Every metric that the kind of a prediction allows.

    Categorical: accuracy, balanced_accuracy, f1, precision, recall (macro), mcc, top_5 above five classes, nll, brier,
    ece, auroc and average_precision (one class against the rest, the mean over classes). Bernoulli: subset_accuracy,
    element_accuracy, f1, precision, recall (macro), nll, brier, ece, auroc, average_precision. Continuous: mse, rmse,
    mae, r2, max_error.

    Args:
        prediction: with a target.
        bins: bins of the calibration error.

    Raises:
        DataError: the prediction has no target, or one that does not fit.
    """
    makers: dict[str, Callable[[Prediction, int], MetricTable]] = {
        "categorical": _categorical,
        "bernoulli": _bernoulli,
        "continuous": _continuous,
    }
    return makers[prediction.kind](prediction, bins)


def confidence_and_right(entries: Entries, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """What a reliability diagram compares, flat.

    Categorical: the largest probability, and whether that class is the target. Bernoulli: the probability of each
    label, and its target.
    """
    assert entries.probabilities is not None
    if kind == "categorical":
        decided, confidence = reliability.top_1(entries.probabilities)
        return confidence, decided == entries.target
    judged = ~np.isnan(entries.target)
    return entries.probabilities[judged], entries.target[judged]


def _categorical(prediction: Prediction, bins: int) -> MetricTable:
    entries = prediction.entries
    target, decoded, shares = entries.target, entries.decoded, entries.probabilities
    assert shares is not None
    confusion = classification.confusion_matrix(target, decoded, prediction.classes)
    scores = classification.class_scores(confusion, prediction.names)
    values: dict[str, Any] = {
        "accuracy": classification.accuracy(target, decoded),
        "balanced_accuracy": classification.balanced_accuracy(scores),
        **{name: classification.mean_score(scores, name) for name in ("f1", "precision", "recall")},
        "mcc": classification.mcc(confusion),
        **{f"top_{k}": classification.top_k(target, shares, k) for k in _K if k < prediction.classes},
        "nll": reliability.nll(shares, target),
        "brier": reliability.brier(shares, target),
        "ece": reliability.ece(reliability.reliability_bins(*confidence_and_right(entries, "categorical"), bins)),
    }
    reasons = {"mcc": _ONE_CLASS}
    columns = [(target == index, shares[:, index]) for index in range(prediction.classes)]
    _ranked(values, reasons, columns, prediction.names)
    return _table(values, reasons, rows=len(target))


def _bernoulli(prediction: Prediction, bins: int) -> MetricTable:
    entries = prediction.entries
    target, decoded, shares = entries.target, entries.decoded, entries.probabilities
    assert shares is not None
    judged = ~np.isnan(target)
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    hard = bool(((target == 0) | (target == 1) | ~judged).all())
    names = ("subset_accuracy", "element_accuracy", "f1", "precision", "recall")
    if hard:
        scores = classification.label_scores(target, decoded, prediction.names)
        hits = (decoded == target) | ~judged
        values = {
            "subset_accuracy": float(hits.all(1).mean()) if len(hits) else None,
            "element_accuracy": float(hits[judged].mean()) if judged.any() else None,
            **{name: classification.mean_score(scores, name) for name in names[2:]},
        }
    else:
        values, reasons = dict.fromkeys(names), dict.fromkeys(names, _SOFT)
    values |= {
        "nll": reliability.label_nll(shares, target),
        "brier": reliability.label_brier(shares, target),
        "ece": reliability.ece(reliability.reliability_bins(*confidence_and_right(entries, "bernoulli"), bins)),
    }
    if hard:
        columns = [(target[judged[:, i], i] == 1, shares[judged[:, i], i]) for i in range(prediction.classes)]
        _ranked(values, reasons, columns, prediction.names)
    else:
        values |= dict.fromkeys(("auroc", "average_precision"))
        reasons |= dict.fromkeys(("auroc", "average_precision"), _SOFT)
    return _table(values, reasons, rows=len(target))


def _continuous(prediction: Prediction, bins: int) -> MetricTable:
    entries = prediction.entries
    target, decoded = entries.target, entries.decoded
    values: dict[str, Any] = {
        "mse": regression.mse(target, decoded),
        "rmse": regression.rmse(target, decoded),
        "mae": regression.mae(target, decoded),
        "r2": regression.r2(target, decoded),
        "max_error": regression.max_error(target, decoded),
    }
    return _table(values, {"r2": _CONSTANT}, rows=len(target))


def _ranked(
    values: dict[str, Any],
    reasons: dict[str, str],
    columns: list[tuple[np.ndarray, np.ndarray]],
    names: tuple[str, ...],
) -> None:
    for name, score in (("auroc", ranking.auroc), ("average_precision", ranking.average_precision)):
        values[name], reason = ranking.mean_of_defined([score(*column) for column in columns], names)
        if reason is not None:
            reasons[name] = reason


def _table(values: dict[str, float | None], reasons: dict[str, str], *, rows: int) -> MetricTable:
    missing = [name for name, value in values.items() if value is None]
    return MetricTable(values, {name: reasons.get(name, _NO_ROWS) if rows else _NO_ROWS for name in missing})
