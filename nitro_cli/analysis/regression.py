"""How far values are from their targets. Entries whose target is NaN do not count; an undefined score is None."""

from __future__ import annotations

import numpy as np

__all__ = ["QUANTILES", "mae", "max_error", "mse", "r2", "residual_quantiles", "rmse"]

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def mse(target: np.ndarray, values: np.ndarray) -> float | None:
    """The mean squared residual of (M, L) values."""
    residual = _residuals(target, values)
    return float((residual**2).mean()) if len(residual) else None


def rmse(target: np.ndarray, values: np.ndarray) -> float | None:
    """The root of the mean squared residual."""
    mean = mse(target, values)
    return None if mean is None else mean**0.5


def mae(target: np.ndarray, values: np.ndarray) -> float | None:
    """The mean absolute residual."""
    residual = _residuals(target, values)
    return float(np.abs(residual).mean()) if len(residual) else None


def max_error(target: np.ndarray, values: np.ndarray) -> float | None:
    """The largest absolute residual."""
    residual = _residuals(target, values)
    return float(np.abs(residual).max()) if len(residual) else None


def r2(target: np.ndarray, values: np.ndarray) -> float | None:
    """One minus the residual over the target's variance, the mean over the L targets; None where one is constant."""
    found = []
    for column in range(target.shape[1]):
        judged = ~np.isnan(target[:, column])
        true = target[judged, column]
        spread = float(((true - true.mean()) ** 2).sum()) if len(true) else 0.0
        if spread == 0:
            return None
        found.append(1 - float(((true - values[judged, column]) ** 2).sum()) / spread)
    return sum(found) / len(found)


def residual_quantiles(target: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Quantiles of value minus target, linearly interpolated, by their probability as text; empty without entries."""
    residual = _residuals(target, values)
    if not len(residual):
        return {}
    return {
        f"{share:g}": float(value) for share, value in zip(QUANTILES, np.quantile(residual, QUANTILES), strict=True)
    }


def _residuals(target: np.ndarray, values: np.ndarray) -> np.ndarray:
    judged = ~np.isnan(target)
    return values[judged] - target[judged]
