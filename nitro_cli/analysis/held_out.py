"""What a calibrator does to probabilities of data that it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis.calibrator import AcceptedMismatch, Calibrator
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.reliability import (
    ReliabilityBin,
    brier,
    ece,
    label_brier,
    label_nll,
    nll,
    reliability_bins,
    top_1,
)
from nitro_cli.errors import ConfigError, DataError
from nitro_cli.metrics import EPSILON

__all__ = ["CalibrationReport", "CalibrationScores", "calibration_report", "check_apart"]


@dataclass(frozen=True)
class CalibrationScores:
    """How far probabilities are what they say.

    Args:
        nll: the mean negative log-likelihood; None where infinite.
        brier: the Brier score.
        ece: the expected calibration error.
        bins: the reliability bins.
    """

    nll: float | None
    brier: float
    ece: float | None
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class CalibrationReport:
    """Scores before and after calibration.

    Args:
        calibrator: the calibrator's id.
        method: how it was fitted.
        split: the split reported on.
        rows: how many samples it has.
        entries: how many entries were judged.
        before, after: the scores.
        outcome: `improved` (neither NLL nor Brier score worse, one better), `worsened` (neither better, one worse),
            `unchanged` or `mixed`.
        disjoint: `verified` where ids show that no sample was fitted on, else `unverified`.
        override: the mismatch that was accepted, or None.
    """

    calibrator: str
    method: str
    split: str | None
    rows: int
    entries: int
    before: CalibrationScores
    after: CalibrationScores
    outcome: str
    disjoint: str
    override: AcceptedMismatch | None = None

    @property
    def improved(self) -> bool:
        """Whether neither NLL nor Brier score is worse and one is better."""
        return self.outcome == "improved"

    @property
    def summary(self) -> str:
        """One line that says the outcome."""
        words = {
            "improved": "better calibrated",
            "worsened": "WORSE than uncalibrated",
            "unchanged": "unchanged by calibration",
            "mixed": "better by one score and WORSE by the other",
        }
        where = f"on {self.split}" if self.split is not None else "on these rows"
        numbers = ", ".join(
            f"{name} {_short(getattr(self.before, field))} to {_short(getattr(self.after, field))}"
            for name, field in (("NLL", "nll"), ("Brier", "brier"), ("ECE", "ece"))
        )
        accepted = "" if self.override is None else f"; mismatch accepted as {self.override.name!r}"
        return f"{where} ({self.entries} rows): {words[self.outcome]}: {numbers}{accepted}"

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        override = None if self.override is None else self.override.as_json()
        return asdict(self) | {"override": override, "summary": self.summary}


def calibration_report(
    calibrator: Calibrator,
    prediction: Prediction,
    *,
    bins: int = 10,
    epsilon: float | None = EPSILON,
    override: str | None = None,
) -> CalibrationReport:
    """Report a calibrator on data that it was not fitted on.

    Args:
        calibrator: the calibrator.
        prediction: with targets.
        bins: reliability bins.
        epsilon: the floor of a probability in the NLL; None is exact.
        override: a name under which another model or other labels are accepted.

    Raises:
        ConfigError: it was fitted on the same split, or on some of these samples.
        MismatchError: it is of another model or other labels.
        DataError: there is nothing to judge.
    """
    disjoint = check_apart(calibrator, prediction, calibrator.fitted_ids)
    made = calibrator.apply(prediction, override=override)
    entries = prediction.entries
    if not len(entries.target) or entries.probabilities is None:
        raise DataError("no row has a target", fix="predict with --target FIELD")
    after = calibrator.probabilities(entries.logits)
    score = _class_scores if prediction.kind == "categorical" else _label_scores
    sides = [score(shares, entries.target, bins, epsilon) for shares in (entries.probabilities, after)]
    return CalibrationReport(
        calibrator.id,
        calibrator.method,
        prediction.origin.split,
        len(prediction),
        len(entries.target),
        sides[0],
        sides[1],
        _outcome(sides[0], sides[1]),
        disjoint,
        made.override,
    )


def check_apart(artefact: Any, prediction: Prediction, fitted_ids: np.ndarray | None) -> str:
    """Check that what was fitted on one split is not reported on it.

    Args:
        artefact: with a `split`.
        prediction: what is reported on.
        fitted_ids: the ids it was fitted on, where they are known.

    Returns:
        `verified` where ids of the data show that no sample is in both, else `unverified`.

    Raises:
        ConfigError: the splits have one name or one digest, or a sample is in both.
    """
    why = artefact.split.same_as(prediction)
    if why is not None:
        raise ConfigError(
            "fitting and reporting on one split says nothing about new data",
            why=why,
            fix="report on a split that nothing was fitted on"
            + (", such as --report test" if prediction.origin.split != "test" else "; or fit on another, such as val"),
        )
    if fitted_ids is None or prediction.origin.ids is None or prediction.origin.ids != artefact.split.ids:
        return "unverified"
    both = np.intersect1d(fitted_ids, prediction.ids)
    if len(both):
        raise ConfigError(
            f"{len(both)} samples are in both splits, such as {', '.join(map(str, both[:3]))}",
            why="what was fitted on a sample says nothing about it",
            fix="report on other samples",
        )
    return "verified"


def _class_scores(shares: np.ndarray, target: np.ndarray, bins: int, epsilon: float | None) -> CalibrationScores:
    decided, confidence = top_1(shares)
    return _scores(nll, brier, (confidence, decided == target), shares, target, bins, epsilon)


def _label_scores(shares: np.ndarray, target: np.ndarray, bins: int, epsilon: float | None) -> CalibrationScores:
    judged = ~np.isnan(target)
    return _scores(label_nll, label_brier, (shares[judged], target[judged]), shares, target, bins, epsilon)


def _scores(
    mean_log: Callable[..., float | None],
    squares: Callable[..., float | None],
    compared: tuple[np.ndarray, np.ndarray],
    shares: np.ndarray,
    target: np.ndarray,
    bins: int,
    epsilon: float | None,
) -> CalibrationScores:
    logs = mean_log(shares, target, epsilon)
    made = reliability_bins(*compared, bins)
    finite = logs if logs is not None and np.isfinite(logs) else None
    return CalibrationScores(finite, squares(shares, target) or 0.0, ece(made), made)


def _outcome(before: CalibrationScores, after: CalibrationScores) -> str:
    def changed(one: float | None, two: float | None) -> float:
        # An infinite NLL, told as None, is worse than every other.
        one, two = (float("inf") if value is None else value for value in (one, two))
        return 0.0 if one == two else two - one

    changes = (changed(before.nll, after.nll), changed(before.brier, after.brier))
    better, worse = any(change < 0 for change in changes), any(change > 0 for change in changes)
    if better:
        return "mixed" if worse else "improved"
    return "worsened" if worse else "unchanged"


def _short(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4f}"
