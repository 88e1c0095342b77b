"""Scores of decided classes: exact counts, and what follows from them. An undefined score is None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError, DataError, nearest
from nitro_cli.metrics import Accuracy, BalancedAccuracy, Mcc, TopK, Undefined, averaged_score

__all__ = [
    "CLASS_AVERAGES",
    "ClassScores",
    "accuracy",
    "balanced_accuracy",
    "class_scores",
    "classification_report",
    "confusion_matrix",
    "label_scores",
    "largest_confusions",
    "mcc",
    "mean_score",
    "top_k",
]

CLASS_AVERAGES = ("macro", "weighted", "micro")
_NORMALIZATIONS = ("true", "predicted", "all")


def confusion_matrix(
    target: np.ndarray, decoded: np.ndarray, classes: int, *, normalize: str | None = None
) -> np.ndarray:
    """How often each class was decided as each: rows are true, columns decoded.

    Args:
        target, decoded: (M,) class numbers.
        classes: how many classes there are.
        normalize: `true` divides by the rows' sums, `predicted` by the columns', `all` by the whole; 0 where that is 0.

    Returns:
        (classes, classes), int64, or float64 where normalized.

    Raises:
        DataError: a class is outside 0 to classes - 1.
        ConfigError: an unknown normalization.
    """
    for name, values in (("target", target), ("decision", decoded)):
        outside = np.flatnonzero((values < 0) | (values >= classes))
        if len(outside):
            at = outside[0]
            raise DataError(f"the {name} of row {at} is {values[at]}", why=f"the classes are 0 to {classes - 1}")
    counts = np.bincount(target * classes + decoded, minlength=classes * classes).reshape(classes, classes)
    counts = counts.astype(np.int64)
    if normalize is None:
        return counts
    if normalize not in _NORMALIZATIONS:
        close = nearest(normalize, _NORMALIZATIONS)
        raise ConfigError(f"normalize is {normalize!r}", nearest=close, fix=f"one of {', '.join(_NORMALIZATIONS)}")
    total = {"true": counts.sum(1, keepdims=True), "predicted": counts.sum(0, keepdims=True), "all": counts.sum()}
    return counts / np.maximum(total[normalize], 1)


def largest_confusions(confusion: np.ndarray, names: Sequence[str], count: int = 20) -> list[dict[str, Any]]:
    """The classes most often taken for others: the largest entries off the diagonal, largest first, then by class."""
    off = confusion.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:count]
    places = [divmod(int(place), len(names)) for place in order]
    return [
        {"target": names[row], "decoded": names[column], "count": int(off[row, column])}
        for row, column in places
        if off[row, column]
    ]


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class, or of one label.

    Args:
        name: the class.
        precision: right decisions of the decisions for it; None where there are none.
        recall: right decisions of its rows; None where it has none.
        f1: their harmonic mean, `2 tp / (2 tp + fp + fn)`; None where it has neither.
        support: its rows.
        predicted: the decisions for it.
    """

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int


def class_scores(confusion: np.ndarray, names: Sequence[str]) -> tuple[ClassScores, ...]:
    """Precision, recall, F1 and support of every class."""
    right, support, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    counts = zip(names, right.tolist(), support.tolist(), predicted.tolist(), strict=True)
    return tuple(_scores(name, hit, rows, made) for name, hit, rows, made in counts)


def label_scores(target: np.ndarray, decoded: np.ndarray, names: Sequence[str]) -> tuple[ClassScores, ...]:
    """Precision, recall, F1 and support of every label of (M, L) decisions; entries with a NaN target do not count."""
    judged, true, made = ~np.isnan(target), target == 1, decoded == 1
    right = (judged & true & made).sum(0).tolist()
    support, predicted = (judged & true).sum(0).tolist(), (judged & made).sum(0).tolist()
    counts = zip(names, right, support, predicted, strict=True)
    return tuple(_scores(name, hit, rows, decisions) for name, hit, rows, decisions in counts)


def mean_score(scores: Sequence[ClassScores], score: str, average: str = "macro") -> float | None:
    """One number for all classes, as scikit-learn with `zero_division=0`.

    Args:
        scores: those of every class.
        score: `precision`, `recall` or `f1`.
        average: `macro`, the mean over the classes that occur as target or decision; `weighted`, by their rows;
            `micro`, over all decisions.

    Returns:
        The mean, in which an undefined score counts 0; None where no class occurs.

    Raises:
        ConfigError: an unknown average.
    """
    if average not in CLASS_AVERAGES:
        close = nearest(average, CLASS_AVERAGES)
        raise ConfigError(f"there is no average {average!r}", nearest=close, fix=f"one of {', '.join(CLASS_AVERAGES)}")
    right = np.array([round((row.recall or 0.0) * row.support) for row in scores], np.int64)
    support, predicted = (np.array([getattr(row, name) for row in scores]) for name in ("support", "predicted"))
    return defined(averaged_score(right, support, predicted, score, average))


def classification_report(scores: Sequence[ClassScores], confusion: np.ndarray | None = None) -> dict[str, Any]:
    """Every class, the macro and weighted means, and the accuracy where classes exclude each other; JSON values."""
    means = {
        average: {score: mean_score(scores, score, average) for score in ("precision", "recall", "f1")}
        | {"support": sum(row.support for row in scores)}
        for average in ("macro", "weighted")
    }
    report: dict[str, Any] = {
        "classes": [
            {"name": row.name, "precision": row.precision, "recall": row.recall, "f1": row.f1, "support": row.support}
            for row in scores
        ],
        **means,
    }
    if confusion is not None:
        rows = int(confusion.sum())
        report["accuracy"] = int(np.trace(confusion)) / rows if rows else None
    return report


def accuracy(target: np.ndarray, decoded: np.ndarray) -> float | None:
    """The share of right decisions; None without rows."""
    return defined(Accuracy().of(target, decoded))


def balanced_accuracy(scores: Sequence[ClassScores]) -> float | None:
    """The mean recall of the classes that have rows; None without rows."""
    held = [(row, round((row.recall or 0.0) * row.support)) for row in scores]
    counts = {"right": [right for _, right in held], "support": [row.support for row, _ in held]}
    counts["predicted"] = [row.predicted for row, _ in held]
    return defined(BalancedAccuracy().value({name: np.array(x) for name, x in counts.items()}))


def mcc(confusion: np.ndarray) -> float | None:
    """Matthews' correlation of target and decision (Gorodkin 2004); None where either is one class throughout."""
    counts = {"right": np.diag(confusion), "support": confusion.sum(1), "predicted": confusion.sum(0)}
    return defined(Mcc().value(counts))


def top_k(target: np.ndarray, scores: np.ndarray, k: int) -> float | None:
    """The share of rows whose target is among the `k` largest scores.

    Of equal scores the class of the lower number goes first, as it does in a decision: `top_k` of 1 is the accuracy.

    Args:
        target: (M,) classes.
        scores: (M, C) logits or probabilities.
        k: how many.
    """
    return defined(TopK(k=k).of(target, scores))


def defined(value: Any) -> Any:
    """A metric's value; None where it is undefined."""
    return None if isinstance(value, Undefined) else value


def _scores(name: str, right: int, support: int, predicted: int) -> ClassScores:
    return ClassScores(
        name,
        right / predicted if predicted else None,
        right / support if support else None,
        2 * right / (support + predicted) if support + predicted else None,
        int(support),
        int(predicted),
    )
