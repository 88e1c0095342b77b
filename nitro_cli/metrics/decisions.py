"""Metrics of decisions: how often they are right, by class and in all. As scikit-learn's with `zero_division=0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from nitro_cli.metrics.metric import NO_ENTRY, EntryMean, Metric, register_metric
from nitro_cli.metrics.totals import class_counts, library_of
from nitro_cli.metrics.undefined import Undefined

__all__ = [
    "F1",
    "SOFT",
    "Accuracy",
    "BalancedAccuracy",
    "Confusion",
    "ElementAccuracy",
    "Mcc",
    "Precision",
    "Recall",
    "SubsetAccuracy",
    "TopK",
    "averaged_score",
]

SOFT = "a target is neither 0 nor 1"
_ONE_CLASS = "the targets or the decisions are one class throughout"


def soft_count(target: Any, valid: Any) -> Any:
    """How many targets of labels are neither 0 nor 1, which no decision can meet."""
    return (valid & (target != 0) & (target != 1)).sum()


def averaged_score(right: np.ndarray, support: np.ndarray, predicted: np.ndarray, score: str, average: str) -> Any:
    """Precision, recall or F1 over classes or labels; an undefined one counts 0.

    Args:
        right: [C] right decisions for each.
        support: [C] targets of each.
        predicted: [C] decisions for each.
        score: `precision`, `recall` or `f1`, which is `2 right / (support + predicted)`.
        average: `macro`, the mean over the classes that occur; `weighted`, by their support; `micro`, of the sums.
    """
    held = (support > 0) | (predicted > 0)
    right, support, predicted = right[held], support[held], predicted[held]
    if not len(right):
        return Undefined(NO_ENTRY)
    if average == "micro":
        right, support, predicted = (x.sum(keepdims=True) for x in (right, support, predicted))
    above, below = {
        "precision": (right, predicted),
        "recall": (right, support),
        "f1": (2 * right, support + predicted),
    }[score]
    scores = above / np.maximum(below, 1)
    if average != "weighted":
        return float(scores.mean())
    return float((scores * support).sum() / support.sum()) if support.any() else 0.0


class ByClass(Metric):
    """What is told by how many targets, decisions and right decisions each class or label has."""

    classes: int | None = None
    """How many classes or labels; those of the outputs where a task asks."""

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Right decisions, targets and decisions by class or label."""
        if target.ndim == 1:
            return {
                "right": class_counts(target, valid & (target == prediction), self.classes),
                "support": class_counts(target, valid, self.classes),
                "predicted": class_counts(prediction, valid, self.classes),
            }
        true, made = valid & (target == 1), valid & (prediction == 1)
        return {
            "right": (true & made).sum(0),
            "support": true.sum(0),
            "predicted": made.sum(0),
            "soft": soft_count(target, valid),
        }


class AveragedScore(ByClass):
    """Precision, recall or F1, averaged over classes or labels."""

    average: Literal["macro", "weighted", "micro"] = "macro"
    """`macro`: the mean over the classes that occur as target or decision; `weighted`: by their targets; `micro`: of
    the sums over classes."""

    score: ClassVar[str]

    def value(self, *found: Any) -> Any:
        """The average."""
        (sums,) = found
        if sums.get("soft"):
            return Undefined(SOFT)
        right, support, predicted = _aligned(sums["right"], sums["support"], sums["predicted"])
        return averaged_score(right, support, predicted, self.score, self.average)


def _aligned(*counts: np.ndarray) -> list[np.ndarray]:
    # NumPy counts no further than the largest class that it met.
    size = max(map(len, counts))
    return [np.pad(count, (0, size - len(count))) for count in counts]


@register_metric("precision")
class Precision(AveragedScore):
    """Right decisions among the decisions for a class."""

    score = "precision"


@register_metric("recall")
class Recall(AveragedScore):
    """Right decisions among the targets of a class."""

    score = "recall"


@register_metric("f1")
class F1(AveragedScore):
    """The harmonic mean of precision and recall."""

    score = "f1"


@register_metric("balanced_accuracy")
class BalancedAccuracy(ByClass):
    """The mean recall of the classes that have targets."""

    kinds = ("categorical",)

    def value(self, *found: Any) -> Any:
        """The mean of the recalls."""
        right, support, _ = _aligned(*(found[0][name] for name in ("right", "support", "predicted")))
        held = support > 0
        return float((right[held] / support[held]).mean()) if held.any() else Undefined(NO_ENTRY)


@register_metric("mcc")
class Mcc(ByClass):
    """Matthews' correlation of target and decision, for any number of classes (Gorodkin 2004)."""

    kinds = ("categorical",)

    def value(self, *found: Any) -> Any:
        """The correlation; 0 stands where it is undefined, as in scikit-learn."""
        right, true, made = (
            x.astype(np.float64) for x in _aligned(*(found[0][name] for name in ("right", "support", "predicted")))
        )
        total = true.sum()
        spread = (total**2 - made @ made) * (total**2 - true @ true)
        if not total:
            return Undefined(NO_ENTRY)
        return (
            float((right.sum() * total - true @ made) / np.sqrt(spread)) if spread > 0 else Undefined(_ONE_CLASS, 0.0)
        )


@register_metric("confusion")
class Confusion(Metric):
    """How often each class was decided as each, [C, C] whole numbers: rows are true, columns decoded."""

    kinds = ("categorical",)

    classes: int | None = None
    """How many classes; those of the outputs where a task asks."""

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The matrix, flat."""
        classes = self.classes
        if classes is None and library_of(target) is np:
            classes = 1 + max((int(x[valid].max()) for x in (target, prediction) if valid.any()), default=0)
        wide = 0 if classes is None else classes
        return {"counts": class_counts(target * wide + prediction, valid, None if classes is None else wide * wide)}

    def value(self, *found: Any) -> Any:
        """The matrix."""
        counts = found[0]["counts"]
        return counts.reshape(round(len(counts) ** 0.5), -1)


@register_metric("accuracy")
class Accuracy(EntryMean):
    """The share of right decisions."""

    kinds = ("categorical",)

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Right decisions, and entries."""
        return {"total": (valid & (target == prediction)).sum(), "count": valid.sum()}


@register_metric("top_k")
class TopK(EntryMean):
    """The share of entries whose target is among the `k` largest outputs.

    Of equal outputs the class of the lower number goes first, as it does in a decision: `k = 1` is the accuracy.
    """

    reads, kinds = "values", ("categorical",)

    k: Annotated[int, Field(ge=1)] = 5
    """How many."""

    def misfit(self, classes: int) -> str | None:
        """Of fewer classes than `k` every one would be a hit."""
        return f"k is {self.k}, and there are {classes} classes" if self.k > classes else None

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Targets that are among them, and entries."""
        own = library_of(target).take_along_axis(prediction, target[:, None], axis=1)
        lower = np.arange(prediction.shape[1]) < target[:, None]
        before = ((prediction > own) | ((prediction == own) & lower)).sum(axis=1)
        return {"total": (valid & (before < self.k)).sum(), "count": valid.sum()}


class OfLabels(EntryMean):
    """A share of right decisions about labels, which targets between 0 and 1 do not allow."""

    kinds = ("bernoulli",)

    def value(self, *found: Any) -> Any:
        """Right ones over all."""
        return Undefined(SOFT) if found[0]["soft"] else super().value(*found)


@register_metric("subset_accuracy")
class SubsetAccuracy(OfLabels):
    """The share of samples all of whose labels are decided right; a masked label is no mistake."""

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Samples without a mistake, and samples with a label that counts."""
        judged = valid.any(axis=1)
        right = ((target == prediction) | ~valid).all(axis=1)
        return {"total": (judged & right).sum(), "count": judged.sum(), "soft": soft_count(target, valid)}


@register_metric("element_accuracy")
class ElementAccuracy(OfLabels):
    """The share of right decisions about single labels."""

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Right decisions, and labels that count."""
        right = (valid & (target == prediction)).sum()
        return {"total": right, "count": valid.sum(), "soft": soft_count(target, valid)}
