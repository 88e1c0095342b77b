"""The family of metrics, and the catalogue that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Part
from nitro_cli.metrics.undefined import Undefined
from nitro_cli.metrics.values import Max, Min, Sum
from nitro_cli.text import Catalogue

__all__ = ["METRICS", "NO_ENTRY", "EntryMean", "Metric", "kept_entries", "register_metric", "with_classes"]

_MetricClass = TypeVar("_MetricClass", bound="type[Metric]")

_SHIPPED = {
    "decisions": {
        "accuracy": "Accuracy",
        "balanced_accuracy": "BalancedAccuracy",
        "confusion": "Confusion",
        "element_accuracy": "ElementAccuracy",
        "f1": "F1",
        "mcc": "Mcc",
        "precision": "Precision",
        "recall": "Recall",
        "subset_accuracy": "SubsetAccuracy",
        "top_k": "TopK",
    },
    "likelihoods": {"brier": "Brier", "ece": "Ece", "nll": "Nll"},
    "rankings": {"auroc": "Auroc", "average_precision": "AveragePrecision"},
    "residuals": {"mae": "Mae", "max_error": "MaxError", "mse": "Mse", "r2": "R2", "rmse": "Rmse"},
}

METRICS: Catalogue[type[Metric]] = Catalogue(
    "metric",
    "nitro.metrics",
    key="id",
    shipped={id: f"nitro_cli.metrics.{room}:{name}" for room, held in _SHIPPED.items() for id, name in held.items()},
)
"""The metrics by (id, version): nitro's own, those of `register_metric`, and those of the entry points
`nitro.metrics`."""

NO_ENTRY = "no entry has a target"

_KINDS = {
    "values": ("continuous",),
    "decoded": ("categorical", "bernoulli"),
    "probabilities": ("categorical", "bernoulli"),
}


class Metric(Part):
    """A metric of predictions, as sums over their entries, so that no way of cutting a split into batches changes it.

    A subclass, registered by `register_metric`, says what it reads and gives `sums` and `value`. An entry is a sample,
    or a position in one. What the methods are given, for M entries:

    | kind | target | values | decoded | probabilities | valid |
    | --- | --- | --- | --- | --- | --- |
    | categorical | i32[M] class | f32[M, C] logits | i32[M] | f32[M, C] | bool[M] |
    | bernoulli | f32[M, L], 0 to 1 | f32[M, L] logits | i32[M, L], 0 or 1 | f32[M, L] | bool[M, L] |
    | continuous | f32[M, L] | f32[M, L] | the values | none | bool[M, L] |

    Where `valid` is False the target is 0 and means nothing. A field called `classes` that is None gets C or L.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = METRICS

    reads: ClassVar[str] = "decoded"
    """What `prediction` is: `values`, `decoded` or `probabilities`."""

    mode: ClassVar[str] = "max"
    """The natural direction: `max` where more is better, `min` where less is."""

    keeps: ClassVar[bool] = False
    """Whether targets and predictions of a whole split are kept, and `value(target, prediction)` is given them."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of prediction that it is of; empty is what goes with `reads`: values are continuous, else classes and
    labels."""

    name: str = ""
    """What it is reported as; empty is its id."""

    @property
    def label(self) -> str:
        """What it is reported as."""
        return self.name or super().label

    @classmethod
    def is_of(cls, kind: str) -> bool:
        """Whether it is of a kind of prediction."""
        return kind in (cls.kinds or _KINDS[cls.reads])

    def misfit(self, classes: int) -> str | None:
        """Why it says nothing of outputs with so many classes or labels; None where it does."""
        return None

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The totals of a batch by name, traced: numbers or arrays, which are added over batches; `Max(x)` and `Min(x)`
        merge so."""
        raise NotImplementedError(f"{type(self).__name__} has no sums")

    def value(self, *found: Any) -> Any:
        """The metric, on the host in float64: of the merged sums, or, where it keeps, of the valid targets and their
        predictions, joined in order (of labels a masked target is NaN). A number, a small array, or `Undefined`."""
        raise NotImplementedError(f"{type(self).__name__} has no value")

    def mean(self, sums: Mapping[str, Any]) -> tuple[Any, Any]:
        """Of a metric that is a mean over entries: the total and the count of a batch, traced, for the train lines."""
        raise NotImplementedError(f"{type(self).__name__} is no mean")

    def of(self, target: np.ndarray, prediction: np.ndarray, valid: np.ndarray | None = None) -> Any:
        """The metric of predictions in memory, in NumPy and its precision; arguments as of `sums`."""
        valid = np.ones(target.shape, bool) if valid is None else valid
        target = np.where(valid, target, 0)
        if self.keeps:
            return self.value(*kept_entries(target, prediction, valid))
        sums = self.sums(target, prediction, valid)
        # A metric of one's own may compute in JAX whatever it is given.
        bare = {name: x.value if isinstance(x, Max | Min | Sum) else x for name, x in sums.items()}
        return self.value({name: np.asarray(x) for name, x in bare.items()})


class EntryMean(Metric):
    """A total over the entries that count, over their number: `sums` are `total` and `count`."""

    def value(self, *found: Any) -> Any:
        """The mean."""
        total, count = self.mean(found[0])
        return float(total / count) if count else Undefined(NO_ENTRY)

    def mean(self, sums: Mapping[str, Any]) -> tuple[Any, Any]:
        """The total, whose last axis is the parts of a precise one, and the count."""
        return sums["total"].sum(), sums["count"]


def kept_entries(target: np.ndarray, prediction: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a metric that keeps is given: the valid entries, rows with one for labels, NaN where those are masked."""
    if valid.ndim == 1:
        return target[valid], prediction[valid]
    rows = valid.any(axis=1)
    return np.where(valid, target, np.nan)[rows], prediction[rows]


def with_classes(metric: Metric, classes: int) -> Metric:
    """The metric with the number of classes or labels, where it has a field for it that is not set."""
    if getattr(metric, "classes", 0) is not None:
        return metric
    # Not validated again: inside a program Device fields are traced.
    return metric.model_copy(update={"classes": classes})


def register_metric(id: str, version: int = 1, *, replace: bool = False) -> Callable[[_MetricClass], _MetricClass]:
    """A class decorator that makes a metric known by its id.

    Args:
        id: the name that configurations write.
        version: 1 or more; a configuration without one means 1.
        replace: whether it may take the place of one that is there.

    Raises:
        ConfigError: the id or version cannot be one, there is one already, or the class reads what there is not.
    """
    register = METRICS.register(id, version, replace=replace)

    def checked(cls: _MetricClass) -> _MetricClass:
        for name, allowed in (("reads", tuple(_KINDS)), ("mode", ("max", "min"))):
            if getattr(cls, name) not in allowed:
                raise ConfigError(
                    f"{cls.__name__}.{name} is {getattr(cls, name)!r}", where=id, fix=f"one of {', '.join(allowed)}"
                )
        return register(cls)

    return checked
