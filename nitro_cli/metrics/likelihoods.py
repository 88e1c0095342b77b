"""Metrics of probabilities: how far they are what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from nitro_cli.metrics.metric import NO_ENTRY, EntryMean, Metric, register_metric
from nitro_cli.metrics.totals import library_of, precise_total
from nitro_cli.metrics.undefined import Undefined

__all__ = ["EPSILON", "Brier", "Ece", "Nll", "bin_gaps", "bin_places"]

EPSILON = 1e-12
"""The floor of a probability inside a logarithm."""


def bin_places(confidence: Any, bins: int) -> Any:
    """The bin of each number of 0 to 1, i[M]: bin i of n is [i/n, (i+1)/n), the last closed.

    Found by comparing with the edges i/n: `floor(confidence * n)` puts .57 of 100 bins into bin 56.
    """
    xp = library_of(confidence)
    edges = np.array([i / bins for i in range(1, bins)])
    return xp.searchsorted(xp.asarray(edges, confidence.dtype), confidence, side="right")


def bin_gaps(confidence: np.ndarray, right: np.ndarray, count: np.ndarray) -> Any:
    """The expected calibration error: the mean over bins of |accuracy - confidence|, weighted by their counts.

    Args:
        confidence, right, count: [bins] the sums of the confidences and of what is right, and how many there are.
    """
    return float(np.abs(right - confidence).sum() / count.sum()) if count.sum() else Undefined(NO_ENTRY)


@register_metric("nll")
class Nll(EntryMean):
    """The mean of -log max(p, 1e-12), p the probability of what is true; in the logarithm from the logits."""

    reads, mode, kinds = "values", "min", ("categorical", "bernoulli")

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The sum of the logarithms, and entries."""
        xp, most = library_of(prediction), -math.log(EPSILON)
        if target.ndim == 1:
            shifted = prediction - prediction.max(axis=1, keepdims=True)
            own = xp.take_along_axis(shifted, target[:, None], axis=1)[:, 0]
            each = xp.minimum(xp.log(xp.exp(shifted).sum(axis=1)) - own, most)
        else:
            rest = xp.log1p(xp.exp(-abs(prediction)))
            yes, no = (xp.minimum(xp.maximum(z, 0) + rest, most) for z in (-prediction, prediction))
            each = target * yes + (1 - target) * no
        return {"total": precise_total(xp.where(valid, each, 0)), "count": valid.sum()}


@register_metric("brier")
class Brier(EntryMean):
    """The mean of sum_c (p_c - [c = y])^2, 0 to 2; of labels of (p - y)^2, 0 to 1."""

    reads, mode = "probabilities", "min"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The sum of the squares, and entries."""
        xp = library_of(prediction)
        if target.ndim == 1:
            each = ((prediction - (np.arange(prediction.shape[1]) == target[:, None])) ** 2).sum(axis=1)
        else:
            each = (prediction - target) ** 2
        return {"total": precise_total(xp.where(valid, each, 0)), "count": valid.sum()}


@register_metric("ece")
class Ece(Metric):
    """The expected calibration error: of classes by the largest probability, of labels by the probability of each."""

    reads, mode = "probabilities", "min"

    bins: Annotated[int, Field(ge=1)] = 10
    """Bins of equal width over 0 to 1."""

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Of every bin the sums of confidence and of what is right, and its entries."""
        xp = library_of(prediction)
        confidence, right = prediction, target
        if target.ndim == 1:
            decided = prediction.argmax(axis=1)
            confidence, right = prediction.max(axis=1), decided == target
        inside = (bin_places(confidence, self.bins)[..., None] == np.arange(self.bins)) & valid[..., None]
        inside = inside.reshape(-1, self.bins)

        def by_bin(x: Any) -> Any:
            return precise_total(xp.where(inside, x.reshape(-1, 1), 0).astype(prediction.dtype), 0)

        return {"confidence": by_bin(confidence), "right": by_bin(right), "count": inside.sum(axis=0)}

    def value(self, *found: Any) -> Any:
        """The error."""
        (sums,) = found
        return bin_gaps(sums["confidence"].sum(-1), sums["right"].sum(-1), sums["count"])
