"""Metrics of how well probabilities put entries of a class before the others, one class against the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from nitro_cli.metrics.decisions import SOFT
from nitro_cli.metrics.likelihoods import bin_places
from nitro_cli.metrics.metric import Metric, register_metric
from nitro_cli.metrics.ranking_curves import ThresholdCurve, auroc_of, average_precision_of, threshold_curve
from nitro_cli.metrics.undefined import Undefined

__all__ = ["Auroc", "AveragePrecision"]


class AgainstRest(Metric):
    """The mean over classes, or labels, of a score of one against the rest."""

    reads = "probabilities"

    bins: Annotated[int, Field(ge=2)] | None = None
    """Bins of probability in which entries are counted; None keeps every entry of a split and is exact."""

    @staticmethod
    @abstractmethod
    def score(curve: ThresholdCurve) -> float | None:
        """The score of one class; None where it has none."""

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        """Whether every entry is kept."""
        return self.bins is None

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Of every class and bin, the entries of the class and the others."""
        assert self.bins is not None
        shown = valid[:, None] if target.ndim == 1 else valid
        positive = np.arange(prediction.shape[1]) == target[:, None] if target.ndim == 1 else target == 1
        inside = (bin_places(prediction, self.bins)[..., None] == np.arange(self.bins)) & shown[..., None]
        soft = (valid & (target != 0) & (target != 1)).sum() if target.ndim > 1 else 0 * valid.sum()
        yes = (inside & positive[..., None]).sum(axis=0)
        return {"positive": yes, "negative": inside.sum(axis=0) - yes, "soft": soft}

    def value(self, *found: Any) -> Any:
        """The mean; undefined where a class has no score, which would be left out in silence."""
        curves = list(_kept_curves(*found) if self.keeps else _binned_curves(*found))
        if not curves:
            return Undefined(SOFT)
        scores = [self.score(curve) for curve in curves]
        missing = tuple(place for place, score in enumerate(scores) if score is None)
        if missing:
            return Undefined("every row, or none, has it as target", classes=missing)
        return float(np.mean([score for score in scores if score is not None]))


def _kept_curves(target: np.ndarray, prediction: np.ndarray) -> list[ThresholdCurve]:
    if target.ndim == 1:
        return [threshold_curve(target == index, prediction[:, index]) for index in range(prediction.shape[1])]
    judged = ~np.isnan(target)
    if (judged & (target != 0) & (target != 1)).any():
        return []
    columns = range(prediction.shape[1])
    return [threshold_curve(target[judged[:, i], i] == 1, prediction[judged[:, i], i]) for i in columns]


def _binned_curves(sums: Mapping[str, np.ndarray]) -> list[ThresholdCurve]:
    if sums["soft"]:
        return []
    return [
        ThresholdCurve(
            np.arange(len(yes))[::-1], yes[::-1].cumsum() * 1.0, no[::-1].cumsum() * 1.0, yes.sum(), no.sum()
        )
        for yes, no in zip(sums["positive"], sums["negative"], strict=True)
    ]


@register_metric("auroc")
class Auroc(AgainstRest):
    """The area under the ROC curve: the chance that an entry of the class scores above another, ties a half."""

    @staticmethod
    def score(curve: ThresholdCurve) -> float | None:
        """The area of one class."""
        return auroc_of(curve)


@register_metric("average_precision")
class AveragePrecision(AgainstRest):
    """The mean of the precisions at each threshold, weighted by the recall that is gained there."""

    @staticmethod
    def score(curve: ThresholdCurve) -> float | None:
        """The mean precision of one class."""
        return average_precision_of(curve)
