"""How well scores put rows of a class before the others."""

from __future__ import annotations

import numpy as np

from nitro_cli.metrics.ranking_curves import auroc_of, average_precision_of, threshold_curve

__all__ = ["auroc", "average_precision"]


def auroc(positive: np.ndarray, score: np.ndarray) -> float | None:
    """The area under the ROC curve: the chance that a positive row scores above a negative one, ties a half.

    None where one of the two has no row.
    """
    return auroc_of(threshold_curve(positive, score))


def average_precision(positive: np.ndarray, score: np.ndarray) -> float | None:
    """The mean of the precisions at each threshold, weighted by the recall gained there; None without positive rows."""
    return average_precision_of(threshold_curve(positive, score))
