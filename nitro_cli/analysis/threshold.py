"""Choosing the threshold of a policy: the largest coverage at which the risk stays under a ceiling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nitro_cli.analysis.calibrator import AcceptedMismatch, Calibrator
from nitro_cli.analysis.policy import AbstentionPolicy
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.risk_curve import CurvePoint, RiskCoverage, curve_of_scores
from nitro_cli.analysis.scores import scored_entries
from nitro_cli.errors import ConfigError, FitError

__all__ = ["ThresholdSelection", "binomial_upper_bound", "select_threshold"]


@dataclass(frozen=True)
class ThresholdSelection:
    """How the choice of a threshold went.

    Args:
        status: `ok` or `no_feasible_policy`.
        policy: what was chosen, or None.
        point: coverage and risk of the choice on its own data, or None.
        bound: of the basis `sgr`, the risk that is not exceeded with that confidence; else None.
        least_risk: the smallest risk, or bound, that any threshold reached; None without rows.
        curve: the whole risk-coverage curve.
        reason: why there is no policy.
        override: the mismatch of the calibrator that was accepted, or None.
    """

    status: str
    policy: AbstentionPolicy | None
    point: CurvePoint | None
    bound: float | None
    least_risk: float | None
    curve: RiskCoverage
    reason: str | None = None
    override: AcceptedMismatch | None = None

    def require(self) -> AbstentionPolicy:
        """The policy.

        Raises:
            FitError: no threshold is feasible; the smallest risk reached is told.
        """
        if self.policy is None:
            raise FitError("no threshold keeps the risk under the ceiling", why=self.reason, fix="allow more risk")
        return self.policy


def select_threshold(
    prediction: Prediction,
    *,
    risk: float,
    score: str = "max_probability",
    calibrator: Calibrator | None = None,
    confidence: float | None = None,
    override: str | None = None,
) -> ThresholdSelection:
    """Choose the threshold of a policy on predictions with targets.

    Of the thresholds that accept a row and have a risk at or below the ceiling, the one of the largest coverage, then
    the higher one. The ceiling is met on this data and promised nowhere else, unless `confidence` is given: then the
    search of SGR (Geifman and El-Yaniv 2017) tests ceil(log2 n) thresholds, each by the exact binomial upper bound at
    its share of the allowed error.

    Args:
        prediction: categorical, with targets.
        risk: the ceiling of the selective risk, 0 to 1.
        score: `max_probability` or `margin`.
        calibrator: whose probabilities are scored; raw ones when None.
        confidence: between 0 and 1: how surely the ceiling holds on data of the same distribution.
        override: a name under which a calibrator of another model or other labels is accepted.

    Raises:
        ConfigError: the ceiling or the confidence is out of range.
        DataError: the prediction is not categorical, or has no target.
    """
    if not 0 <= risk <= 1:
        raise ConfigError(f"the risk is {risk}", fix="give a share of wrong decisions, 0 to 1")
    if confidence is not None and not 0 < confidence < 1:
        raise ConfigError(f"the confidence is {confidence}", fix="give a number between 0 and 1, such as 0.95")
    found = scored_entries(prediction, score, calibrator, override)
    wrong = found.decoded != prediction.entries.target
    curve = curve_of_scores(found.score, wrong)
    if confidence is None:
        point, bound, least = _empirical(curve, risk)
    else:
        point, bound, least = _guaranteed(found.score, wrong, risk, 1 - confidence)
    if point is None or point.threshold is None:
        what = "risk" if confidence is None else f"risk that holds with confidence {confidence:g}"
        reason = "there are no rows" if least is None else f"the smallest {what} reached is {least:.6g}, above {risk:g}"
        return ThresholdSelection("no_feasible_policy", None, None, None, least, curve, reason, found.override)
    origin = prediction.origin
    policy = AbstentionPolicy.model_validate(
        {
            "score": score,
            "threshold": point.threshold,
            "labels": prediction.names,
            "model_id": origin.model_id,
            "split": {"name": origin.split, "data": origin.data, "rows": len(prediction), "ids": origin.ids},
            "input": "probabilities" if calibrator is None else "calibrated_probabilities",
            "calibrator": None if calibrator is None else calibrator.id,
            "basis": "empirical" if confidence is None else "sgr",
            "risk": float(risk),
            "confidence": confidence,
        }
    )
    return ThresholdSelection("ok", policy, point, bound, least, curve, None, found.override)


def binomial_upper_bound(wrong: int, accepted: int, error: float) -> float:
    """The largest risk under which so few wrong rows still have the probability `error` (Clopper and Pearson 1934)."""
    if wrong >= accepted:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(wrong + 1, accepted - wrong, 1 - error))


def _empirical(curve: RiskCoverage, risk: float) -> tuple[CurvePoint | None, None, float | None]:
    if not curve.rows:
        return None, None, None
    risks = curve.wrong / curve.accepted
    feasible = np.flatnonzero(risks <= risk)
    if not len(feasible):
        return None, None, float(risks.min())
    # Thresholds rise along the curve, so the first feasible one has the largest coverage.
    at = int(feasible[0])
    point = CurvePoint(float(curve.thresholds[at]), int(curve.accepted[at]), int(curve.wrong[at]), curve.rows)
    return point, None, float(risks.min())


def _guaranteed(
    score: np.ndarray, wrong: np.ndarray, risk: float, error: float
) -> tuple[CurvePoint | None, float | None, float | None]:
    """The binary search of SGR over the sorted scores; every threshold tested has its share of the error."""
    rows = len(score)
    if not rows:
        return None, None, None
    order = np.argsort(score, kind="stable")
    ranked = score[order]
    remaining = np.append(np.cumsum(wrong[order][::-1].astype(np.int64))[::-1], 0)
    tests = max(1, math.ceil(math.log2(rows)))
    low, high = 0, rows - 1
    best: tuple[CurvePoint, float] | None = None
    least = 1.0
    for _ in range(tests):
        middle = (low + high + 1) // 2
        first = int(np.searchsorted(ranked, ranked[middle], side="left"))
        point = CurvePoint(float(ranked[middle]), rows - first, int(remaining[first]), rows)
        bound = binomial_upper_bound(point.wrong, point.accepted, error / tests)
        least = min(least, bound)
        if bound <= risk:
            if best is None or point.accepted > best[0].accepted:
                best = (point, bound)
            high = middle
        else:
            low = middle
    return (None, None, least) if best is None else (*best, least)
