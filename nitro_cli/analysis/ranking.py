"""How well scores put rows of a class before the others, at every threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["ThresholdCurve", "auroc", "average_precision", "threshold_curve"]


@dataclass(frozen=True)
class ThresholdCurve:
    """Counts at every distinct score, falling: rows with at least that score are taken.

    Args:
        thresholds: (K,) distinct scores, the largest first.
        hits: (K,) positive rows taken, float64.
        false_alarms: (K,) negative rows taken, float64.
        positives, negatives: how many there are.
    """

    thresholds: np.ndarray
    hits: np.ndarray
    false_alarms: np.ndarray
    positives: int
    negatives: int


def threshold_curve(positive: np.ndarray, score: np.ndarray) -> ThresholdCurve:
    """The counts behind a ROC and a precision-recall curve.

    Args:
        positive: (M,) truth values.
        score: (M,) scores; equal ones are one threshold.
    """
    order = np.argsort(-score, kind="stable")
    ranked, truth = score[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1) if len(ranked) else np.zeros(0, np.int64)
    hits = np.cumsum(truth)[last].astype(np.float64)
    positives = int(positive.sum())
    return ThresholdCurve(ranked[last], hits, last + 1 - hits, positives, len(positive) - positives)


def auroc(positive: np.ndarray, score: np.ndarray) -> float | None:
    """The area under the ROC curve: the chance that a positive row scores above a negative one, ties a half.

    None where one of the two has no row.
    """
    curve = threshold_curve(positive, score)
    if not curve.positives or not curve.negatives:
        return None
    x = np.append(0.0, curve.false_alarms) / curve.negatives
    y = np.append(0.0, curve.hits) / curve.positives
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def average_precision(positive: np.ndarray, score: np.ndarray) -> float | None:
    """The mean of the precisions at each threshold, weighted by the recall gained there; None without positive rows."""
    curve = threshold_curve(positive, score)
    if not curve.positives:
        return None
    precision = curve.hits / (curve.hits + curve.false_alarms)
    return float(np.sum(np.diff(np.append(0.0, curve.hits)) * precision) / curve.positives)


def mean_of_defined(values: Sequence[float | None], names: Sequence[str]) -> tuple[float | None, str | None]:
    """The mean over classes, or None with the reason: a class without a value would be left out in silence."""
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return None, f"undefined for {shown}: every row, or none, has it as target"
    held = [value for value in values if value is not None]
    return sum(held) / len(held), None
