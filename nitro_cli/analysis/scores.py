"""How sure a decision is: the scores by which rows are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.analysis.link_functions import softmax
from nitro_cli.errors import ConfigError, DataError, nearest
from nitro_cli.metrics import library_of

if TYPE_CHECKING:
    from nitro_cli.analysis.calibrator import AcceptedMismatch, Calibrator
    from nitro_cli.analysis.prediction import Prediction

__all__ = ["SCORES", "Scored", "scored_entries", "scored_rows", "scores_of"]

SCORES = ("max_probability", "margin")


@dataclass(frozen=True)
class Scored:
    """Decisions with their scores.

    Args:
        probabilities: (M, C) the distributions that were scored, float64.
        decoded: (M,) the decided classes.
        score: (M,) in 0 to 1.
        override: the mismatch of a calibrator that was accepted, or None.
    """

    probabilities: np.ndarray
    decoded: np.ndarray
    score: np.ndarray
    override: AcceptedMismatch | None = None


def scores_of(probabilities: Any, score: str) -> Any:
    """The scores of (M, C) distributions: the largest probability, or how far it is above the second.

    Of JAX arrays a JAX array.

    Raises:
        ConfigError: an unknown score.
    """
    if score not in SCORES:
        close = nearest(score, SCORES)
        raise ConfigError(f"there is no score {score!r}", nearest=close, fix=f"one of {', '.join(SCORES)}")
    xp, top = library_of(probabilities), probabilities.max(1)
    if score == "max_probability":
        return xp.minimum(top, 1.0)
    first = xp.arange(probabilities.shape[1]) == probabilities.argmax(1)[:, None]
    return xp.minimum(top - xp.where(first, -xp.inf, probabilities).max(1), 1.0)


def scored_rows(
    prediction: Prediction, score: str, calibrator: Calibrator | None, override: str | None = None
) -> Scored:
    """Score every entry of a categorical prediction, judged or not; a calibrator does not change the decision.

    Raises:
        DataError: the prediction is not categorical.
        MismatchError: the calibrator is of another model or other labels.
    """
    if prediction.kind != "categorical":
        raise DataError(
            f"a {prediction.kind} prediction has no score of its decisions",
            why="abstention is of decisions between classes",
        )
    if calibrator is None:
        accepted, shares = None, softmax(prediction.outputs.astype(np.float64), prediction.class_axis)
    else:
        made = calibrator.apply(prediction, override=override)
        accepted, shares = made.override, made.calibrated_probabilities
    flat = np.moveaxis(shares, prediction.class_axis, -1).reshape(-1, prediction.classes)
    return Scored(flat, prediction.decoded.reshape(-1).astype(np.int64), scores_of(flat, score), accepted)


def scored_entries(
    prediction: Prediction, score: str, calibrator: Calibrator | None, override: str | None = None
) -> Scored:
    """Score the judged entries of a categorical prediction.

    Raises:
        DataError: the prediction is not categorical, or has no target that fits.
        MismatchError: the calibrator is of another model or other labels.
    """
    found = scored_rows(prediction, score, calibrator, override)
    judged = prediction.entries.judged
    return Scored(found.probabilities[judged], found.decoded[judged], found.score[judged], found.override)
