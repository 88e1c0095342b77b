"""How the share of wrong decisions falls as the less sure ones are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.analysis.calibrator import Calibrator
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.scores import scored_entries

__all__ = ["MOST_THRESHOLDS", "CurvePoint", "RiskCoverage", "aurc", "curve_of_scores", "risk_coverage"]

MOST_THRESHOLDS = 10_000


@dataclass(frozen=True)
class CurvePoint:
    """What accepting the rows at or above one threshold means.

    Args:
        threshold: the score; None accepts no row, and is not deployable.
        accepted: rows accepted.
        wrong: how many of them are wrong.
        rows: all rows.
    """

    threshold: float | None
    accepted: int
    wrong: int
    rows: int

    @property
    def coverage(self) -> float | None:
        """Accepted of all rows; None without rows."""
        return self.accepted / self.rows if self.rows else None

    @property
    def risk(self) -> float | None:
        """Wrong of accepted rows; None where none is accepted."""
        return self.wrong / self.accepted if self.accepted else None

    @property
    def deployable(self) -> bool:
        """Whether a policy can have this threshold."""
        return self.threshold is not None

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "threshold": self.threshold,
            "accepted": self.accepted,
            "wrong": self.wrong,
            "coverage": self.coverage,
            "risk": self.risk,
        }


@dataclass(frozen=True)
class RiskCoverage:
    """A curve: what each threshold accepts, ascending. Coverage falls along it; risk need not.

    Args:
        thresholds: (K,) scores, ascending.
        accepted: (K,) rows at or above each.
        wrong: (K,) of them, how many are wrong.
        rows: all rows.
        aurc: the mean over k of the risk of the k surest rows; None without rows.
    """

    thresholds: np.ndarray
    accepted: np.ndarray
    wrong: np.ndarray
    rows: int
    aurc: float | None

    def __len__(self) -> int:
        return len(self.thresholds) + 1

    def __iter__(self) -> Iterator[CurvePoint]:
        """Every point, and at last the one that accepts none."""
        columns = zip(self.thresholds.tolist(), self.accepted.tolist(), self.wrong.tolist(), strict=True)
        for threshold, accepted, wrong in columns:
            yield CurvePoint(threshold, accepted, wrong, self.rows)
        yield CurvePoint(None, 0, 0, self.rows)


def risk_coverage(
    prediction: Prediction,
    *,
    score: str = "max_probability",
    calibrator: Calibrator | None = None,
    override: str | None = None,
) -> RiskCoverage:
    """The risk-coverage curve of a categorical prediction.

    Args:
        prediction: with targets.
        score: `max_probability`, or `margin`, the distance of the two largest probabilities.
        calibrator: whose probabilities are scored; raw ones when None.
        override: a name under which a calibrator of another model or other labels is accepted.

    Returns:
        One point per distinct score; above 10,000 of them that many evenly spaced order statistics.

    Raises:
        DataError: the prediction is not categorical, or has no target.
    """
    found = scored_entries(prediction, score, calibrator, override)
    return curve_of_scores(found.score, found.decoded != prediction.entries.target)


def curve_of_scores(score: np.ndarray, wrong: np.ndarray) -> RiskCoverage:
    """The curve of (M,) scores and whether each row is wrong."""
    order = np.argsort(score, kind="stable")
    ranked, errors = score[order], wrong[order].astype(np.int64)
    # Where each distinct score begins: all rows from there on are accepted.
    first = np.flatnonzero(np.append(True, np.diff(ranked) > 0)) if len(ranked) else np.zeros(0, np.int64)
    if len(first) > MOST_THRESHOLDS:
        picked = np.linspace(0, len(ranked) - 1, MOST_THRESHOLDS).round().astype(np.int64)
        first = np.unique(np.searchsorted(ranked, ranked[picked], side="left"))
    remaining = np.append(np.cumsum(errors[::-1])[::-1], 0)
    return RiskCoverage(ranked[first], len(ranked) - first, remaining[first], len(ranked), aurc(score, wrong))


def aurc(score: np.ndarray, wrong: np.ndarray) -> float | None:
    """The mean over k of the risk of the k surest rows (Geifman, Uziel and El-Yaniv 2019).

    Rows of one score come in no order: the risk inside them is that of a random one, so it depends on no order of rows.

    Args:
        score: (M,) scores.
        wrong: (M,) truth values.
    """
    if not len(score):
        return None
    distinct, place, counts = np.unique(-score, return_inverse=True, return_counts=True)
    errors = np.bincount(place, weights=wrong, minlength=len(distinct))
    before_rows, before_errors = np.cumsum(counts) - counts, np.cumsum(errors) - errors
    rank = np.arange(1, len(score) + 1)
    group = np.repeat(np.arange(len(distinct)), counts)
    expected = before_errors[group] + errors[group] * (rank - before_rows[group]) / counts[group]
    return float((expected / rank).mean())
