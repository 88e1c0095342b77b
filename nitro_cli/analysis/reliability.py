"""How far probabilities are what they say: log-likelihood, Brier score, reliability bins, calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nitro_cli.analysis.classification import defined
from nitro_cli.errors import ConfigError
from nitro_cli.metrics import EPSILON, Brier, bin_gaps, bin_places

__all__ = ["ReliabilityBin", "brier", "ece", "label_brier", "label_nll", "nll", "reliability_bins", "top_1"]


def nll(probabilities: np.ndarray, target: np.ndarray, epsilon: float | None = EPSILON) -> float | None:
    """The mean of `-log max(p_y, epsilon)`.

    Args:
        probabilities: (M, C), float64.
        target: (M,) classes.
        epsilon: the floor; None is exact, and infinite where a target has probability 0.

    Returns:
        The mean; None without rows.
    """
    return _mean_log(np.take_along_axis(probabilities, target[:, None], axis=1)[:, 0], epsilon)


def label_nll(probabilities: np.ndarray, target: np.ndarray, epsilon: float | None = EPSILON) -> float | None:
    """The mean of `-y log p - (1 - y) log(1 - p)` over the entries of (M, L) labels whose target is not NaN."""
    judged = ~np.isnan(target)
    p, y = probabilities[judged], target[judged]
    if not len(y):
        return None
    floor = 0.0 if epsilon is None else epsilon
    with np.errstate(divide="ignore"):
        yes, no = -np.log(np.maximum(p, floor)), -np.log(np.maximum(1 - p, floor))
    # 0 times an infinite logarithm is 0: what has no weight costs nothing.
    return float((np.where(y > 0, y, 0) * np.where(y > 0, yes, 0) + (1 - y) * np.where(y < 1, no, 0)).mean())


def brier(probabilities: np.ndarray, target: np.ndarray) -> float | None:
    """The mean of `sum_c (p_c - [c = y])^2`, 0 to 2; None without rows."""
    value: float | None = defined(Brier().of(target, probabilities))
    return value


def label_brier(probabilities: np.ndarray, target: np.ndarray) -> float | None:
    """The mean of `(p - y)^2` over the entries of (M, L) labels whose target is not NaN, 0 to 1."""
    value: float | None = defined(Brier().of(target, probabilities, ~np.isnan(target)))
    return value


def top_1(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first class of largest probability of every row, and that probability."""
    decided = probabilities.argmax(1)
    return decided, np.take_along_axis(probabilities, decided[:, None], axis=1)[:, 0]


@dataclass(frozen=True)
class ReliabilityBin:
    """The rows whose confidence falls between two edges.

    Args:
        lower, upper: the edges, the lower one included; of the last bin both.
        count: how many rows.
        confidence: their mean confidence; None of an empty bin.
        accuracy: how often they are right; None of an empty bin.
    """

    lower: float
    upper: float
    count: int
    confidence: float | None
    accuracy: float | None


def reliability_bins(confidence: np.ndarray, right: np.ndarray, bins: int = 10) -> tuple[ReliabilityBin, ...]:
    """Bins of equal width over 0 to 1; empty ones stay.

    A row's bin is found by comparing its confidence with the edges `i / bins`: `floor(confidence * bins)` puts .57 of
    100 bins into bin 56.

    Args:
        confidence: (M,) in 0 to 1.
        right: (M,) 1 where right, 0 where not; what is averaged as accuracy.
        bins: how many.

    Raises:
        ConfigError: fewer than one bin.
    """
    if bins < 1:
        raise ConfigError(f"there are {bins} bins", fix="give 1 or more")
    place = bin_places(confidence, bins)
    counts = np.bincount(place, minlength=bins)
    sure = np.bincount(place, weights=confidence, minlength=bins)
    hits = np.bincount(place, weights=right.astype(np.float64), minlength=bins)
    return tuple(
        ReliabilityBin(
            i / bins,
            (i + 1) / bins,
            int(counts[i]),
            float(sure[i] / counts[i]) if counts[i] else None,
            float(hits[i] / counts[i]) if counts[i] else None,
        )
        for i in range(bins)
    )


def ece(bins: Sequence[ReliabilityBin]) -> float | None:
    """The expected calibration error: the mean of `|accuracy - confidence|`, weighted by count; None without rows."""
    held = [(one.confidence or 0.0, one.accuracy or 0.0, one.count) for one in bins]
    confidence, right, count = np.array(held, np.float64).reshape(-1, 3).T
    value: float | None = defined(bin_gaps(confidence * count, right * count, count))
    return value


def _mean_log(probability: np.ndarray, epsilon: float | None) -> float | None:
    if not len(probability):
        return None
    with np.errstate(divide="ignore"):
        return float(-np.log(probability if epsilon is None else np.maximum(probability, epsilon)).mean())
