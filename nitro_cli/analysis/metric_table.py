"""Every metric that a kind of prediction allows, by name, with the reason where one is undefined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis import reliability
from nitro_cli.analysis.prediction import Entries, Prediction
from nitro_cli.metrics import METRICS, Confusion, Ece, Metric, TopK, Undefined, with_classes

__all__ = ["MetricTable", "confidence_and_right", "metrics_of"]

_NO_ROWS = "no row has a target"
TOP = 5
"""Of how many outputs `top_k` is told."""


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

    Those of `nitro list metrics`, with the options that they have of themselves: averages over classes are macro, and
    `top_k` is `top_5`, above five classes.

    Args:
        prediction: with a target.
        bins: bins of the calibration error.

    Raises:
        DataError: the prediction has no target, or one that does not fit.
    """
    entries = prediction.entries
    given = {"values": entries.logits, "decoded": entries.decoded, "probabilities": entries.probabilities}
    target, valid = entries.target, ~np.isnan(entries.target)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for metric in _metrics(prediction, bins):
        read: Any = given[metric.reads]
        found = metric.of(target, read, valid) if len(target) else Undefined(_NO_ROWS)
        if isinstance(found, Undefined):
            values[metric.label] = None
            reasons[metric.label] = found.told(prediction.names)
        elif np.ndim(found) == 0:  # not so the confusion matrix, which a report has beside
            values[metric.label] = float(found)
    return MetricTable(values, reasons)


def _metrics(prediction: Prediction, bins: int) -> Iterator[Metric]:
    """Every metric of the catalogue that is of the prediction's kind and needs no option."""
    for entry in METRICS.entries():
        if entry.error is not None:
            continue
        found = METRICS.find(entry.id, entry.version)
        if not found.is_of(prediction.kind) or any(info.is_required() for info in found.model_fields.values()):
            continue
        if found is TopK:
            if prediction.classes > TOP:
                yield TopK(k=TOP, name=f"top_{TOP}")
        elif found is Ece:
            yield Ece(bins=bins)
        elif found is not Confusion:
            yield with_classes(found(), prediction.classes)


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
