"""Everything that predictions alone tell about a model, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis import classification, regression
from nitro_cli.analysis.calibrator import Calibrator
from nitro_cli.analysis.coverage import Coverage
from nitro_cli.analysis.held_out import CalibrationReport, calibration_report
from nitro_cli.analysis.metric_table import MetricTable, confidence_and_right, metrics_of
from nitro_cli.analysis.policy import AbstentionPolicy
from nitro_cli.analysis.prediction import Entries, Prediction
from nitro_cli.analysis.reliability import ReliabilityBin, reliability_bins
from nitro_cli.analysis.risk_curve import aurc
from nitro_cli.analysis.scores import scores_of
from nitro_cli.analysis.slices import SliceTable, slice_table

__all__ = ["MOST_CLASSES", "Analysis", "analyze"]

MOST_CLASSES = 20
"""Above so many classes a confusion matrix is told by its largest entries."""


@dataclass(frozen=True)
class Analysis:
    """What predictions are worth.

    Args:
        prediction: the predictions.
        entries: how many entries were judged.
        metrics: every metric that the kind allows.
        report: per class or label, or the quantiles of the residuals of continuous values.
        confusion: int64 counts, rows true, columns decoded; None but of categorical predictions.
        reliability: the reliability bins; empty of continuous values.
        aurc: the area under the risk-coverage curve, by the largest probability; None but of categorical predictions.
        errors: the most confident mistakes, or the largest residuals, the worst first.
        slices: parts of the data.
        calibration: what a calibrator does to the probabilities.
        coverage: what a policy accepts; report and confusion are then of accepted rows alone.
    """

    prediction: Prediction
    entries: int
    metrics: MetricTable
    report: dict[str, Any]
    confusion: np.ndarray | None
    reliability: tuple[ReliabilityBin, ...]
    aurc: float | None
    errors: tuple[dict[str, Any], ...]
    slices: tuple[SliceTable, ...]
    calibration: CalibrationReport | None = None
    coverage: Coverage | None = None

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        prediction = self.prediction
        origin = asdict(prediction.origin)
        confusion: dict[str, Any] | None = None
        if self.confusion is not None:
            confusion = {"labels": list(prediction.names)}
            if prediction.classes <= MOST_CLASSES:
                confusion["counts"] = self.confusion.tolist()
            else:
                confusion["largest"] = classification.largest_confusions(self.confusion, prediction.names)
        return {
            "kind": prediction.kind,
            "rows": len(prediction),
            "entries": self.entries,
            "origin": origin,
            "labels": list(prediction.names),
            "metrics": self.metrics.values,
            "undefined": self.metrics.reasons,
            "report": self.report,
            "confusion": confusion,
            "reliability": [asdict(one) for one in self.reliability],
            "aurc": self.aurc,
            "errors": list(self.errors),
            "slices": [asdict(table) for table in self.slices],
            "calibration": None if self.calibration is None else self.calibration.as_json(),
            "coverage": None if self.coverage is None else self.coverage.as_json(),
        }


def analyze(
    prediction: Prediction,
    *,
    bins: int = 10,
    errors: int = 20,
    slices: Sequence[str] = (),
    min_rows: int = 20,
    calibrator: Calibrator | None = None,
    policy: AbstentionPolicy | None = None,
    override: str | None = None,
) -> Analysis:
    """Analyze predictions that have targets.

    Args:
        prediction: the predictions.
        bins: reliability bins.
        errors: how many mistakes are listed.
        slices: descriptions of parts, as `slice_table` takes them.
        min_rows: parts with fewer rows have no scores.
        calibrator: one to report on; also the one whose probabilities the policy scores.
        policy: one to apply; report and confusion are then of the rows that it accepts.
        override: a name under which artefacts of another model or other labels are accepted.

    Raises:
        DataError: there is no target, or a field that is sliced by.
        ConfigError: an artefact was fitted on this split.
        MismatchError: an artefact is of another model or other labels.
    """
    entries = prediction.entries
    calibrated = None if calibrator is None else calibration_report(
        calibrator, prediction, bins=bins, override=override
    )  # fmt: skip
    coverage, kept = None, np.ones(len(entries.target), bool)
    if policy is not None:
        with_own = calibrator if policy.calibrator is not None else None
        decisions = policy.apply(prediction, calibrator=with_own, override=override)
        coverage, kept = decisions.report(), decisions.accepted[entries.judged]
    report, confusion = _report(prediction, entries, kept)
    bins_of: tuple[ReliabilityBin, ...] = ()
    area = None
    if entries.probabilities is not None:
        bins_of = reliability_bins(*confidence_and_right(entries, prediction.kind), bins)
    if prediction.kind == "categorical" and entries.probabilities is not None:
        area = aurc(scores_of(entries.probabilities, "max_probability"), entries.decoded != entries.target)
    return Analysis(
        prediction,
        len(entries.target),
        metrics_of(prediction, bins),
        report,
        confusion,
        bins_of,
        area,
        _errors(prediction, entries, errors),
        tuple(slice_table(prediction, by, bins=bins, min_rows=min_rows) for by in slices),
        calibrated,
        coverage,
    )


def _report(prediction: Prediction, entries: Entries, kept: np.ndarray) -> tuple[dict[str, Any], np.ndarray | None]:
    if prediction.kind == "continuous":
        return {"residual_quantiles": regression.residual_quantiles(entries.target, entries.decoded)}, None
    target, decoded = entries.target[kept], entries.decoded[kept]
    if prediction.kind == "bernoulli":
        scores = classification.label_scores(target, decoded, prediction.names)
        return classification.classification_report(scores), None
    confusion = classification.confusion_matrix(target, decoded, prediction.classes)
    scores = classification.class_scores(confusion, prediction.names)
    return classification.classification_report(scores, confusion), confusion


def _errors(prediction: Prediction, entries: Entries, count: int) -> tuple[dict[str, Any], ...]:
    ids = prediction.ids[entries.row]
    if prediction.kind == "categorical":
        assert entries.probabilities is not None
        wrong = np.flatnonzero(entries.decoded != entries.target)
        sure = np.take_along_axis(entries.probabilities, entries.decoded[:, None], axis=1)[:, 0]
        order = wrong[np.argsort(-sure[wrong], kind="stable")][:count]
        names = prediction.names
        return tuple(
            {
                "id": ids[i].item(),
                "target": names[entries.target[i]],
                "decoded": names[entries.decoded[i]],
                "confidence": float(sure[i]),
            }
            for i in order
        )
    if prediction.kind == "bernoulli":
        assert entries.probabilities is not None
        gap = np.where(np.isnan(entries.target), 0.0, np.abs(entries.probabilities - entries.target))
        # A mistake is a decision unlike its target; how confident it is, is how far the probability is off.
        gap = np.where((entries.decoded != entries.target) & (gap > 0), gap, 0.0)
        field = "probability"
        values = entries.probabilities
    else:
        gap = np.where(np.isnan(entries.target), 0.0, np.abs(entries.decoded - entries.target))
        field, values = "value", entries.decoded
    order = np.argsort(-gap, axis=None, kind="stable")[:count]
    places = [divmod(int(at), gap.shape[1]) for at in order if gap.flat[at] > 0]
    return tuple(
        {
            "id": ids[row].item(),
            "label": prediction.names[column],
            "target": float(entries.target[row, column]),
            field: float(values[row, column]),
        }
        for row, column in places
    )
