"""How well scores put rows of a class before the others, at every threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ThresholdCurve", "auroc_of", "average_precision_of", "threshold_curve"]


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


def auroc_of(curve: ThresholdCurve) -> float | None:
    """The area under the ROC curve; None where one of the two has no row."""
    if not curve.positives or not curve.negatives:
        return None
    x = np.append(0.0, curve.false_alarms) / curve.negatives
    y = np.append(0.0, curve.hits) / curve.positives
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def average_precision_of(curve: ThresholdCurve) -> float | None:
    """The mean of the precisions at each threshold, weighted by the recall gained there; None without positive rows."""
    if not curve.positives:
        return None
    precision = curve.hits / np.maximum(curve.hits + curve.false_alarms, 1)
    return float(np.sum(np.diff(np.append(0.0, curve.hits)) * precision) / curve.positives)
