"""How far values are from their targets. Entries whose target is NaN do not count; an undefined score is None."""

from __future__ import annotations

import numpy as np

from nitro_cli.analysis.classification import defined
from nitro_cli.metrics import R2, Mae, MaxError, Metric, Mse, Rmse

__all__ = ["QUANTILES", "mae", "max_error", "mse", "r2", "residual_quantiles", "rmse"]

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def mse(target: np.ndarray, values: np.ndarray) -> float | None:
    """The mean squared residual of (M, L) values."""
    return _metric(Mse(), target, values)


def rmse(target: np.ndarray, values: np.ndarray) -> float | None:
    """The root of the mean squared residual."""
    return _metric(Rmse(), target, values)


def mae(target: np.ndarray, values: np.ndarray) -> float | None:
    """The mean absolute residual."""
    return _metric(Mae(), target, values)


def max_error(target: np.ndarray, values: np.ndarray) -> float | None:
    """The largest absolute residual."""
    return _metric(MaxError(), target, values)


def r2(target: np.ndarray, values: np.ndarray) -> float | None:
    """One minus the residual over the target's variance, the mean over the L targets; None where one is constant."""
    return _metric(R2(), target, values)


def _metric(metric: Metric, target: np.ndarray, values: np.ndarray) -> float | None:
    value: float | None = defined(metric.of(target, values, ~np.isnan(target)))
    return value


def residual_quantiles(target: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Quantiles of value minus target, linearly interpolated, by their probability as text; empty without entries."""
    judged = ~np.isnan(target)
    if not judged.any():
        return {}
    found = np.quantile(values[judged] - target[judged], QUANTILES)
    return {f"{share:g}": float(value) for share, value in zip(QUANTILES, found, strict=True)}
