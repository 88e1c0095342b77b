"""A fitted calibrator: what it is bound to, its file, and what it makes of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from nitro_cli.analysis.artefact_file import Artefact
from nitro_cli.analysis.calibration_methods import CALIBRATORS, FitFailure
from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.reliability import label_nll, nll
from nitro_cli.errors import ConfigError, DataError, FitError, MismatchError, NitroError
from nitro_cli.text.documents import Count, Digest, Document, Name, Names, Number

__all__ = [
    "AcceptedMismatch",
    "Calibrated",
    "CalibrationFit",
    "Calibrator",
    "SplitUsed",
    "check_bound",
    "fit_calibrator",
]


class SplitUsed(Document):
    """The data that something was fitted on.

    Attributes:
        name: the split's name.
        data: the digest of its data.
        rows: how many samples it has.
        ids: the field of the ids; None where they are positions.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    data: Digest | None = None
    rows: Count
    ids: Name | None = None

    def same_as(self, prediction: Prediction) -> str | None:
        """Why a prediction is of the same data, or None: one name, or one digest."""
        if self.name is not None and self.name == prediction.origin.split:
            return f"both are the split {self.name}"
        return "both are of the same data" if self.data is not None and self.data == prediction.origin.data else None


class Fit(Document):
    """How well a calibrator fits its own data.

    Attributes:
        entries: how many entries were judged.
        nll_before, nll_after: the negative log-likelihood, without a floor; None where infinite.
    """

    model_config = ConfigDict(extra="forbid")

    entries: Count
    nll_before: Number | None
    nll_after: Number | None


@dataclass(frozen=True)
class AcceptedMismatch:
    """A mismatch that was accepted under a name.

    Args:
        name: why, in the words of who accepted it.
        mismatches: what did not fit.
    """

    name: str
    mismatches: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"name": self.name, "mismatches": list(self.mismatches)}


class Calibrator(Artefact):
    """A fitted calibrator, bound to the model, the labels and the split it was fitted on.

    Attributes:
        kind: the kind of prediction that it takes.
        method, version: how it was fitted.
        parameters: what was fitted.
        labels: the names of the classes; their numbers where they had none.
        model_id: the digest of the weights.
        split: the data it was fitted on.
        fit: how well it fits them.
    """

    artefact: ClassVar[str] = "calibrator"
    command: ClassVar[str] = "calibrate"

    model_config = ConfigDict(extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)] = 1
    kind: Literal["categorical", "bernoulli"]
    method: Name
    version: Count
    parameters: dict[str, Any]
    labels: Names
    model_id: Digest | None
    split: SplitUsed
    fit: Fit
    _parsed: Any = PrivateAttr()
    _fitted_ids: np.ndarray | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _parse_parameters(self) -> Calibrator:
        try:
            known = CALIBRATORS.find(self.method, self.version)
        except NitroError as error:
            raise ValueError(f"{error.what}, as a later nitro may write") from error
        if self.kind not in known.kinds:
            raise ValueError(f"{self.method} does not calibrate {self.kind} predictions")
        parsed = known.parameters.model_validate(self.parameters)
        lengths = {len(values) for values in vars(parsed).values() if isinstance(values, tuple)}
        if len(self.labels) < (2 if self.kind == "categorical" else 1) or lengths - {len(self.labels)}:
            raise ValueError("its parameters are not one per label")
        self._parsed = parsed
        return self

    def apply(self, prediction: Prediction, *, override: str | None = None) -> Calibrated:
        """Raw and calibrated probabilities side by side; the decision stays that of the raw ones.

        Args:
            prediction: of the same model, with the same labels.
            override: a name under which another model or other labels are accepted.

        Raises:
            MismatchError: model or labels are others; raised before a logit is read.
            DataError: the kind is another.
        """
        accepted = check_bound(self, prediction, "calibrator", override)
        if prediction.kind != self.kind:
            raise DataError(f"the calibrator takes {self.kind} predictions, not {prediction.kind} ones")
        logits = np.moveaxis(prediction.outputs, prediction.class_axis, -1) if prediction.outputs.ndim > 1 else None
        columns = prediction.outputs[:, None] if logits is None else logits
        flat = columns.reshape(-1, prediction.classes).astype(np.float64)
        shares = self.probabilities(flat).reshape(columns.shape)
        back = shares[:, 0] if logits is None else np.moveaxis(shares, -1, prediction.class_axis)
        return Calibrated(prediction, back, self.id, accepted)

    def probabilities(self, logits: Any) -> Any:
        """Calibrated probabilities of (M, C) logits: float64 of NumPy, or traced ones of JAX."""
        return CALIBRATORS.find(self.method, self.version).apply(self._parsed, logits, self.kind)

    def remember_ids(self, ids: np.ndarray) -> Calibrator:
        """Keep the ids it was fitted on, in memory alone: a report of other data then knows whether they overlap."""
        self._fitted_ids = ids
        return self

    @property
    def fitted_ids(self) -> np.ndarray | None:
        """The ids it was fitted on, where it was fitted in this process and the data declares ids."""
        return self._fitted_ids


@dataclass(frozen=True)
class Calibrated:
    """A prediction with its calibrated probabilities.

    Args:
        prediction: the raw one.
        calibrated_probabilities: in the shape of its outputs, float64.
        calibrator: the calibrator's id.
        override: the mismatch that was accepted, or None.
    """

    prediction: Prediction
    calibrated_probabilities: np.ndarray
    calibrator: str
    override: AcceptedMismatch | None = None


@dataclass(frozen=True)
class CalibrationFit:
    """How a fit went.

    Args:
        status: `ok` or `failed`.
        calibrator: what was fitted; None where it failed.
        reason: why it failed.
        warnings: what to know of the data.
    """

    status: str
    calibrator: Calibrator | None
    reason: str | None
    warnings: tuple[str, ...] = ()

    def require(self) -> Calibrator:
        """The calibrator.

        Raises:
            FitError: the fit failed; the reason is told.
        """
        if self.calibrator is None:
            raise FitError("no calibrator fits", why=self.reason, fix="nothing is written; use the raw probabilities")
        return self.calibrator


def fit_calibrator(prediction: Prediction, *, method: str = "temperature", version: int = 1) -> CalibrationFit:
    """Fit a calibrator on predictions with targets.

    Args:
        prediction: categorical or bernoulli; logits in `outputs`.
        method, version: `temperature` (categorical, bernoulli), `platt` or `isotonic` (bernoulli, per label).

    Returns:
        The calibrator, or why the data gives none: no best temperature inside 1e-3 to 1e3, one class only, logits that
        are all alike. Never one with a parameter at a bound.

    Raises:
        NotFoundError: there is no such method.
        ConfigError: it does not take this kind.
        DataError: the predictions have no target, or none that fits.
    """
    known = CALIBRATORS.find(method, version)
    if prediction.kind not in known.kinds:
        kinds = " or ".join(known.kinds)
        raise ConfigError(f"{method} calibrates {kinds} predictions, not {prediction.kind} ones", fix="temperature")
    entries = prediction.entries
    warnings: tuple[str, ...] = ()
    if prediction.origin.split == "train":
        warnings = ("the calibrator is fitted on train, where the model is surer than on new data",)
    if not len(entries.target):
        return CalibrationFit("failed", None, "no row has a target", warnings)
    try:
        parameters = known.fit(entries.logits, entries.target, prediction.kind)
    except FitFailure as failure:
        return CalibrationFit("failed", None, str(failure), warnings)
    after = known.apply(known.parameters.model_validate(parameters), entries.logits, prediction.kind)
    mean_log = nll if prediction.kind == "categorical" else label_nll
    assert entries.probabilities is not None
    scores = [mean_log(shares, entries.target, None) for shares in (entries.probabilities, after)]
    finite = [None if score is None or not np.isfinite(score) else score for score in scores]
    origin = prediction.origin
    calibrator = Calibrator.model_validate(
        {
            "kind": prediction.kind,
            "method": method,
            "version": version,
            "parameters": parameters,
            "labels": prediction.names,
            "model_id": origin.model_id,
            "split": {"name": origin.split, "data": origin.data, "rows": len(prediction), "ids": origin.ids},
            "fit": {"entries": len(entries.target), "nll_before": finite[0], "nll_after": finite[1]},
        }
    )
    return CalibrationFit("ok", calibrator.remember_ids(prediction.ids) if origin.ids else calibrator, None, warnings)


def check_bound(artefact: Any, prediction: Prediction, what: str, override: str | None) -> AcceptedMismatch | None:
    """Check that a calibrator or a policy is of a prediction's model and labels.

    Args:
        artefact: with `model_id` and `labels`.
        prediction: what it is applied to.
        what: its name in errors.
        override: a name under which a mismatch is accepted.

    Returns:
        What was accepted; None where everything fits.

    Raises:
        MismatchError: something does not fit, and there is no override.
        ConfigError: the override is no name.
    """
    if override is not None and not override.strip():
        raise ConfigError("the override has no name", fix="say why the mismatch is accepted: --override NAME")
    found = []
    if artefact.model_id != prediction.origin.model_id:
        found.append(f"model {artefact.model_id or 'not known'}, not {prediction.origin.model_id or 'not known'}")
    if tuple(artefact.labels) != prediction.names:
        found.append(f"labels {_some(artefact.labels)}, not {_some(prediction.names)}")
    if not found:
        return None
    if override is None:
        raise MismatchError(
            f"the {what} is of another {'model' if found[0].startswith('model') else 'set of labels'}",
            why=f"it is of {'; '.join(found)}",
            fix=f"fit one on predictions of this model, or accept it with a reason: --override NAME (id {artefact.id})",
        )
    return AcceptedMismatch(override, tuple(found))


def _some(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:5]) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
