"""What a calibrator and a policy say of a split: the numbers that an evaluation adds."""

from __future__ import annotations

from nitro_cli.analysis.calibrator import Calibrator, check_bound
from nitro_cli.analysis.held_out import calibration_report, check_apart
from nitro_cli.analysis.policy import AbstentionPolicy
from nitro_cli.analysis.prediction import Prediction

__all__ = ["applied_scores", "check_artefacts"]


def check_artefacts(
    prediction: Prediction, calibrator: Calibrator | None, policy: AbstentionPolicy | None, override: str | None = None
) -> None:
    """Refuse artefacts of another model or other labels, or fitted on this split, before a value is read.

    Args:
        prediction: of some rows.
        calibrator, policy: the artefacts.
        override: a name under which they are accepted.

    Raises:
        ConfigError: one was fitted on this split.
        MismatchError: they are of another model or other labels, or the policy scores those of another calibrator.
    """
    for artefact in (calibrator, policy):
        if artefact is not None:
            check_apart(artefact, prediction, None)
    if calibrator is not None:
        check_bound(calibrator, prediction, "calibrator", override)
    if policy is not None:
        policy.check_calibrator(calibrator if policy.calibrator is not None else None)
        check_bound(policy, prediction, "policy", override)


def applied_scores(
    prediction: Prediction, calibrator: Calibrator | None, policy: AbstentionPolicy | None, override: str | None = None
) -> dict[str, float | None]:
    """The scores of calibrated probabilities, and how many rows a policy accepts at which risk.

    Args:
        prediction: of a split that neither was fitted on, with targets.
        calibrator: adds `calibrated/nll`, `calibrated/brier`, `calibrated/ece`.
        policy: adds `coverage` and `selective_risk`.
        override: a name under which artefacts of another model or other labels are accepted.

    Raises:
        ConfigError: one was fitted on this split, or on some of these samples.
        MismatchError: as of `check_artefacts`.
        DataError: there is nothing to judge.
    """
    check_artefacts(prediction, calibrator, policy, override)
    scores: dict[str, float | None] = {}
    if calibrator is not None:
        after = calibration_report(calibrator, prediction, override=override).after
        scores |= {f"calibrated/{name}": getattr(after, name) for name in ("nll", "brier", "ece")}
    if policy is not None:
        scored_by = calibrator if policy.calibrator is not None else None
        found = policy.apply(prediction, calibrator=scored_by, override=override).report()
        scores |= {"coverage": found.coverage, "selective_risk": found.risk}
    return scores
