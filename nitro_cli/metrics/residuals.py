"""Metrics of values: how far they are from their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.metrics.metric import NO_ENTRY, EntryMean, Metric, register_metric
from nitro_cli.metrics.totals import library_of, precise_total, square_total
from nitro_cli.metrics.undefined import Undefined
from nitro_cli.metrics.values import Max

__all__ = ["R2", "Mae", "MaxError", "Mse", "Rmse"]


def residuals(target: Any, prediction: Any, valid: Any) -> Any:
    """Value minus target, 0 where that does not count."""
    return library_of(prediction).where(valid, prediction - target, 0)


@register_metric("mse")
class Mse(EntryMean):
    """The mean squared residual, over all entries."""

    reads, mode = "values", "min"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The sum of the squares, and entries."""
        return {"total": square_total(residuals(target, prediction, valid)), "count": valid.sum()}


@register_metric("rmse")
class Rmse(Metric):
    """The root of the mean squared residual."""

    reads, mode = "values", "min"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The sum of the squares, and entries."""
        return {"total": square_total(residuals(target, prediction, valid)), "count": valid.sum()}

    def value(self, *found: Any) -> Any:
        """The root."""
        total, count = found[0]["total"].sum(), found[0]["count"]
        return float(total / count) ** 0.5 if count else Undefined(NO_ENTRY)


@register_metric("mae")
class Mae(EntryMean):
    """The mean absolute residual, over all entries."""

    reads, mode = "values", "min"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The sum of the sizes, and entries."""
        return {"total": precise_total(abs(residuals(target, prediction, valid))), "count": valid.sum()}


@register_metric("max_error")
class MaxError(Metric):
    """The largest absolute residual."""

    reads, mode = "values", "min"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """The largest, and entries."""
        size = abs(residuals(target, prediction, valid))
        return {"largest": Max(size.max(initial=0)), "count": valid.sum()}

    def value(self, *found: Any) -> Any:
        """The largest."""
        return float(found[0]["largest"]) if found[0]["count"] else Undefined(NO_ENTRY)


@register_metric("r2")
class R2(Metric):
    """One minus the squared residuals over the target's squared deviations, the mean over the targets."""

    reads = "values"

    def sums(self, target: Any, prediction: Any, valid: Any) -> Mapping[str, Any]:
        """Of every target its sum, the sum of its squares and of the residuals' squares, and entries."""
        held = library_of(prediction).where(valid, target, 0)
        return {
            "target": precise_total(held, 0),
            "squares": square_total(held, 0),
            "residual": square_total(residuals(target, prediction, valid), 0),
            "count": valid.sum(axis=0),
        }

    def value(self, *found: Any) -> Any:
        """The mean over the targets."""
        total, squares, residual = (found[0][name].sum(-1) for name in ("target", "squares", "residual"))
        count = found[0]["count"]
        if not count.any():
            return Undefined(NO_ENTRY)
        spread = squares - total**2 / np.maximum(count, 1)
        # What rounding leaves of the squares of a constant is no variance.
        if (spread <= 1e-13 * squares).any():
            return Undefined("a target is constant, and has no variance")
        return float((1 - residual / spread).mean())
