"""Methods of calibration, by id and version: fitted on logits and targets, each gives probabilities of logits."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field, Strict, model_validator

from nitro_cli.analysis.link_functions import sigmoid, softmax
from nitro_cli.metrics import library_of
from nitro_cli.text import Catalogue
from nitro_cli.text.documents import Document, Number

__all__ = ["CALIBRATORS", "CalibrationMethod", "FitFailure", "register_calibrator"]

_HOTTEST, _TOLERANCE, _HALVINGS = 1e3, 1e-10, 200
_LARGEST_LOGIT = 1e150
_NEWTON_STEPS = 100
Numbers = Annotated[tuple[Number, ...], Strict(False)]


class FitFailure(Exception):
    """The data gives no calibrator; the message is the reason."""


class CalibrationMethod:
    """A way to calibrate, known by its id and version once `register_calibrator` decorates it.

    Attributes:
        kinds: the kinds of prediction that it takes.
        parameters: the schema of what it fits.
    """

    kinds: ClassVar[tuple[str, ...]]
    parameters: ClassVar[type[BaseModel]]

    @staticmethod
    def fit(logits: np.ndarray, target: np.ndarray, kind: str) -> dict[str, Any]:
        """Fit the parameters, as JSON values.

        Args:
            logits: (M, C), float64.
            target: (M,) classes, or (M, C) values of labels, NaN where there is none.
            kind: the kind of prediction.

        Raises:
            FitFailure: the data gives none.
        """
        raise NotImplementedError

    @staticmethod
    def apply(parameters: Any, logits: Any, kind: str) -> Any:
        """The calibrated probabilities of (M, C) logits.

        Args:
            parameters: of the type `parameters`.
            logits: (M, C), float64 of NumPy; in an export traced, of JAX, and so is what is returned.
            kind: the kind of prediction.
        """
        raise NotImplementedError


CALIBRATORS: Catalogue[type[CalibrationMethod]] = Catalogue("calibrator", "nitro.calibrators", key="method")
"""The methods by (id, version): registered here, or declared in the entry-point group `nitro.calibrators`."""


register_calibrator = CALIBRATORS.register
"""`@register_calibrator(id, version=1)`: a class decorator that makes a method known to `--method`."""


class _Temperature(Document):
    temperature: Annotated[Number, Field(gt=0)]


def _fit_temperature(logits: np.ndarray, target: np.ndarray, kind: str) -> dict[str, Any]:
    """The minimum of the likelihood of z / T over T in 1e-3 to 1e3, by bisection of its slope in b = 1 / T.

    The slope, `mean(E[z] - z_y)` with the expectation under b, never falls in b (its own slope is a variance). The
    interval is halved in log b, so that the error of log T is known.
    """

    def slope(b: float) -> float:
        if kind == "categorical":
            own = np.take_along_axis(logits, target[:, None], axis=1)[:, 0]
            return float(((softmax(b * logits) * logits).sum(1) - own).mean())
        judged = ~np.isnan(target)
        z = logits[judged]
        return float(((sigmoid(b * z) - target[judged]) * z).mean())

    spread = np.ptp(logits, axis=1) if kind == "categorical" else np.abs(logits[~np.isnan(target)])
    if not np.any(spread):
        raise FitFailure("the likelihood does not depend on the temperature: the logits of every row are alike")
    low, high = 1 / _HOTTEST, _HOTTEST
    if float(np.abs(logits).max()) > _LARGEST_LOGIT:
        raise FitFailure(f"a logit is larger than {_LARGEST_LOGIT:g}, and the likelihood cannot be computed")
    if slope(low) >= 0:
        raise FitFailure(
            f"no temperature below {_HOTTEST:g} is the best: the logits tell the targets no better than uniform "
            "probabilities do"
        )
    if slope(high) <= 0:
        raise FitFailure(
            f"no temperature above {1 / _HOTTEST:g} is the best: the logits separate the targets without a mistake, "
            "and the likelihood grows for ever"
        )
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        if np.log(high / low) <= _TOLERANCE:
            return {"temperature": 1 / middle}
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    raise FitFailure(f"the temperature is not known to {_TOLERANCE:g} after {_HALVINGS} halvings")


def _apply_temperature(parameters: _Temperature, logits: Any, kind: str) -> Any:
    scaled = logits / parameters.temperature
    return softmax(scaled) if kind == "categorical" else sigmoid(scaled)


class _Lines(Document):
    slope: Numbers
    intercept: Numbers

    @model_validator(mode="after")
    def _one_per_label(self) -> _Lines:
        if len(self.slope) != len(self.intercept):
            raise ValueError("as many slopes as intercepts")
        return self


def _fit_platt(logits: np.ndarray, target: np.ndarray, kind: str) -> dict[str, Any]:
    """Platt's sigmoid per label, with his smoothed targets (1999), by Newton's method of Lin, Lin and Weng (2007)."""
    lines = [_platt_line(*_judged_label(logits, target, label), label) for label in range(logits.shape[1])]
    return {"slope": [line[0] for line in lines], "intercept": [line[1] for line in lines]}


def _platt_line(z: np.ndarray, y: np.ndarray, label: int) -> tuple[float, float]:
    if np.ptp(z) == 0:
        raise FitFailure(f"the logits of label {label} are all alike")
    positives, negatives = float(y.sum()), float(len(y) - y.sum())
    wanted = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    center, scale = float(z.mean()), float(z.std())
    design = np.stack([(z - center) / scale, np.ones_like(z)], axis=1)
    line = np.array([0.0, np.log((positives + 1) / (negatives + 1))])

    def loss(at: np.ndarray) -> float:
        x = design @ at
        return float((np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))) - wanted * x).sum())

    for _ in range(_NEWTON_STEPS):
        p = sigmoid(design @ line)
        gradient = design.T @ (p - wanted)
        if np.abs(gradient).max() <= 1e-10 * len(z):
            slope = line[0] / scale
            return float(slope), float(line[1] - slope * center)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-12 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        share, here = 1.0, loss(line)
        while loss(line - share * step) > here - 1e-4 * share * float(gradient @ step) and share > 1e-10:
            share /= 2
        line = line - share * step
    raise FitFailure(f"the sigmoid of label {label} is not found in {_NEWTON_STEPS} steps")


def _apply_platt(parameters: _Lines, logits: Any, kind: str) -> Any:
    return sigmoid(logits * np.array(parameters.slope) + np.array(parameters.intercept))


class _Steps(Document):
    logits: Annotated[tuple[Numbers, ...], Strict(False)]
    probabilities: Annotated[tuple[Numbers, ...], Strict(False)]

    @model_validator(mode="after")
    def _rising(self) -> _Steps:
        if len(self.logits) != len(self.probabilities):
            raise ValueError("as many curves of logits as of probabilities")
        for x, p in zip(self.logits, self.probabilities, strict=True):
            if not x or len(x) != len(p) or any(a >= b for a, b in itertools.pairwise(x)):
                raise ValueError("logits that rise, with one probability each")
            if any(a > b for a, b in itertools.pairwise(p)) or p[0] < 0 or p[-1] > 1:
                raise ValueError("probabilities in 0 to 1 that do not fall")
        return self


def _fit_isotonic(logits: np.ndarray, target: np.ndarray, kind: str) -> dict[str, Any]:
    """The rising step function nearest to the targets, per label, linear between its steps."""
    from scipy.optimize import isotonic_regression

    curves = []
    for label in range(logits.shape[1]):
        z, y = _judged_label(logits, target, label)
        if np.ptp(z) == 0:
            raise FitFailure(f"the logits of label {label} are all alike")
        x, place = np.unique(z, return_inverse=True)
        weight = np.bincount(place).astype(np.float64)
        level = isotonic_regression(np.bincount(place, weights=y) / weight, weights=weight).x
        # Between the ends of a step nothing changes: they alone are kept.
        inner = np.zeros(len(x), bool)
        inner[1:-1] = (level[1:-1] == level[:-2]) & (level[1:-1] == level[2:])
        curves.append((x[~inner].tolist(), np.clip(level[~inner], 0, 1).tolist()))
    return {"logits": [x for x, _ in curves], "probabilities": [p for _, p in curves]}


def _apply_isotonic(parameters: _Steps, logits: Any, kind: str) -> Any:
    columns = zip(logits.T, parameters.logits, parameters.probabilities, strict=True)
    xp = library_of(logits)
    return xp.stack([xp.interp(z, np.array(x), np.array(p)) for z, x, p in columns], axis=1)


def _judged_label(logits: np.ndarray, target: np.ndarray, label: int) -> tuple[np.ndarray, np.ndarray]:
    judged = ~np.isnan(target[:, label])
    z, y = logits[judged, label], target[judged, label]
    if np.any((y != 0) & (y != 1)):
        raise FitFailure(f"a target of label {label} is neither 0 nor 1")
    if not len(y) or y.min() == y.max():
        raise FitFailure(f"the targets of label {label} are {'one class' if len(y) else 'all masked'}")
    return z, y


@register_calibrator("temperature")
class Temperature(CalibrationMethod):
    """One temperature that divides all logits."""

    kinds = ("categorical", "bernoulli")
    parameters = _Temperature
    fit = staticmethod(_fit_temperature)
    apply = staticmethod(_apply_temperature)


@register_calibrator("platt")
class Platt(CalibrationMethod):
    """A sigmoid of each label's logit."""

    kinds = ("bernoulli",)
    parameters = _Lines
    fit = staticmethod(_fit_platt)
    apply = staticmethod(_apply_platt)


@register_calibrator("isotonic")
class Isotonic(CalibrationMethod):
    """A rising curve of each label's logit."""

    kinds = ("bernoulli",)
    parameters = _Steps
    fit = staticmethod(_fit_isotonic)
    apply = staticmethod(_apply_isotonic)
