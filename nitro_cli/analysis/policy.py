"""A policy of abstention: which decisions are sure enough to be taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from nitro_cli.analysis.artefact_file import Artefact
from nitro_cli.analysis.calibrator import AcceptedMismatch, Calibrator, SplitUsed, check_bound
from nitro_cli.analysis.coverage import Coverage
from nitro_cli.analysis.held_out import check_apart
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.scores import scored_rows, scores_of
from nitro_cli.errors import DataError, MismatchError
from nitro_cli.text.documents import Digest, Names, Number

__all__ = ["AbstentionPolicy", "Decisions", "Verdict"]

_SUM = 1e-5


@dataclass(frozen=True)
class Verdict:
    """A policy's word on one distribution.

    Args:
        prediction: the name of the decided class.
        score: how sure it is.
        accepted: whether the score reaches the threshold.
        reason: why it was not accepted, or None.
    """

    prediction: str
    score: float
    accepted: bool
    reason: str | None


class AbstentionPolicy(Artefact):
    """Accept a decision whose score reaches the threshold; abstain from others.

    Attributes:
        score: `max_probability` or `margin`.
        threshold: in 0 to 1; a score at it is accepted.
        labels: the names of the classes, in order.
        model_id: the digest of the weights.
        split: the data that the threshold was chosen on.
        input: the probabilities that are scored: `probabilities` or `calibrated_probabilities`.
        calibrator: the id of the calibrator of the latter, else None.
        basis: `empirical` (the ceiling held on that data), or `sgr` (it holds with `confidence`).
        risk: the ceiling that was asked for.
        confidence: of the basis `sgr`, else None.
    """

    artefact: ClassVar[str] = "policy"
    command: ClassVar[str] = "abstain"

    model_config = ConfigDict(extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)] = 1
    score: Literal["max_probability", "margin"]
    threshold: Annotated[Number, Field(ge=0, le=1)]
    labels: Names
    model_id: Digest | None
    split: SplitUsed
    input: Literal["probabilities", "calibrated_probabilities"] = "probabilities"
    calibrator: Digest | None = None
    basis: Literal["empirical", "sgr"] = "empirical"
    risk: Annotated[Number, Field(ge=0, le=1)]
    confidence: Annotated[Number, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> AbstentionPolicy:
        if (self.input == "calibrated_probabilities") != (self.calibrator is not None):
            raise ValueError("calibrated probabilities, and they alone, name their calibrator")
        if (self.basis == "sgr") != (self.confidence is not None):
            raise ValueError("the basis sgr, and it alone, has a confidence")
        if len(self.labels) < 2:
            raise ValueError("fewer than two labels")
        return self

    def apply(
        self, prediction: Prediction, *, calibrator: Calibrator | None = None, override: str | None = None
    ) -> Decisions:
        """Accept or abstain, row by row; every row is kept.

        Args:
            prediction: categorical, of the policy's model and labels.
            calibrator: the one whose probabilities the policy scores.
            override: a name under which another model or other labels are accepted.

        Raises:
            MismatchError: model, labels or calibrator are others; raised before a value is read.
            DataError: the prediction is not categorical.
        """
        self.check_calibrator(calibrator)
        own = check_bound(self, prediction, "policy", override)
        found = scored_rows(prediction, self.score, calibrator, override)
        per_sample = max(1, len(found.score) // max(1, len(prediction)))
        overrides = tuple(dict.fromkeys(item for item in (own, found.override) if item is not None))
        return Decisions(
            self,
            prediction,
            found.decoded,
            found.probabilities,
            found.score,
            found.score >= self.threshold,
            np.repeat(prediction.ids, per_sample)[: len(found.score)],
            overrides,
        )

    def decide(self, labels: Sequence[str], probabilities: Sequence[float], model_id: str | None) -> Verdict:
        """Judge one distribution.

        Args:
            labels: the names of its options, in order.
            probabilities: one per label.
            model_id: the digest of the weights it comes from.

        Raises:
            MismatchError: labels or model are others, or the policy wants calibrated probabilities.
            DataError: these are no probabilities.
        """
        self.check_calibrator(None)
        if tuple(labels) != self.labels or model_id != self.model_id:
            what = "labels" if tuple(labels) != self.labels else "model"
            raise MismatchError(f"the policy is of another {what}", why=f"its {what}: {getattr(self, _FIELD[what])}")
        shares = np.asarray(probabilities, np.float64)
        if shares.shape != (len(self.labels),) or not _is_distribution(shares):
            raise DataError("these are no probabilities of the labels", why=str(list(probabilities))[:200])
        score = float(scores_of(shares[None], self.score)[0])
        accepted = score >= self.threshold
        return Verdict(self.labels[int(shares.argmax())], score, accepted, None if accepted else self.reason)

    def check_calibrator(self, calibrator: Calibrator | None) -> None:
        """Check that a calibrator is the one whose probabilities are scored.

        Raises:
            MismatchError: it is another, it is missing, or the policy scores raw probabilities.
        """
        given = None if calibrator is None else calibrator.id
        if given == self.calibrator:
            return
        raise MismatchError(
            "the policy scores "
            + ("raw probabilities" if self.calibrator is None else "those of a calibrator that is not this one"),
            why=f"calibrator {given or 'none'}, the policy names {self.calibrator or 'none'}",
            fix="leave the calibrator out" if self.calibrator is None else "give the calibrator that it names",
        )

    @property
    def reason(self) -> str:
        """What a row is told that is not accepted."""
        return f"{self.score} below {self.threshold:.6g}"


_FIELD = {"labels": "labels", "model": "model_id"}


@dataclass(frozen=True, eq=False)
class Decisions:
    """A policy applied to the entries of a prediction.

    Args:
        policy: the policy.
        source: what it was applied to.
        prediction: (M,) decided classes.
        probabilities: (M, C) the distributions that were scored.
        score: (M,) how sure each is.
        accepted: (M,) truth values.
        ids: (M,) the ids of their samples.
        overrides: the mismatches that were accepted.
    """

    policy: AbstentionPolicy
    source: Prediction
    prediction: np.ndarray
    probabilities: np.ndarray
    score: np.ndarray
    accepted: np.ndarray
    ids: np.ndarray
    overrides: tuple[AcceptedMismatch, ...] = ()

    def __len__(self) -> int:
        return len(self.score)

    @property
    def reasons(self) -> tuple[str | None, ...]:
        """Why each row was not accepted; None where it was."""
        return tuple(None if taken else self.policy.reason for taken in self.accepted.tolist())

    def report(self, target: np.ndarray | None = None, *, fitted_ids: np.ndarray | None = None) -> Coverage:
        """Coverage and selective risk on data that the threshold was not chosen on.

        Args:
            target: (N, ...) classes, in the place of the prediction's own.
            fitted_ids: the ids of the data it was chosen on, where they are known.

        Raises:
            ConfigError: the threshold was chosen on this split, or on some of these samples.
            DataError: there is no target that fits.
        """
        check_apart(self.policy, self.source, fitted_ids)
        return self.coverage(target)

    def coverage(self, target: np.ndarray | None = None) -> Coverage:
        """Coverage and selective risk, on whatever data.

        Raises:
            DataError: there is no target that fits.
        """
        source = self.source if target is None else _with_target(self.source, target)
        judged = source.entries.judged
        accepted = self.accepted[judged]
        wrong = accepted & (self.prediction[judged] != source.entries.target)
        ids = self.ids[judged]
        told: tuple[dict[str, Any], ...] = tuple(item.as_json() for item in self.overrides)
        return Coverage(self.policy.id, len(accepted), int(accepted.sum()), int(wrong.sum()), ids, ids[accepted], told)


def _with_target(prediction: Prediction, target: np.ndarray) -> Prediction:
    from dataclasses import replace

    return replace(prediction, target=np.asarray(target))


def _is_distribution(shares: np.ndarray) -> bool:
    return bool(np.isfinite(shares).all() and (shares >= 0).all() and abs(shares.sum() - 1) <= _SUM)
