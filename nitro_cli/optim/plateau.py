"""Reducing a schedule when a validation metric stops improving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nitro_cli.errors import MetricError, ScheduleError

__all__ = ["Plateau", "PlateauCounters"]

_MODES = ("min", "max")


@dataclass(frozen=True)
class Plateau:
    """Multiply `inner` by a scale that drops when a validation metric stops improving.

    The rule and the defaults of PyTorch's `ReduceLROnPlateau`, fed once per epoch after validation: an epoch is good
    when the metric beats the best by more than `threshold`, or relative by more than `threshold * abs(best)` (PyTorch's
    margin for a positive best; it has none that works for a negative one); when the bad epochs in a row exceed
    `patience`, `scale = max(scale * factor, min_scale)` and the next `cooldown` epochs count no bad ones. A metric that
    is not finite is a bad epoch.

    Args:
        inner: a number, a factory of the horizon, an optax schedule or a named schedule.
        metric, mode: the metric and `"min"` or `"max"`; both None follows the run's monitor.
        factor: in (0, 1), what the scale is multiplied by.
        patience: bad epochs that are tolerated; 0 reduces at every bad one.
        cooldown: epochs after a reduction in which none counts as bad.
        threshold: by how much an epoch must beat the best.
        threshold_mode: `"rel"`, a fraction of the best's size, or `"abs"`.
        min_scale: the scale never drops below it.

    Raises:
        ScheduleError: a value is out of its range, or only one of `metric` and `mode` is given.
    """

    inner: Any
    metric: str | None = None
    mode: str | None = None
    factor: float = 0.1
    patience: int = 10
    cooldown: int = 0
    threshold: float = 1e-4
    threshold_mode: str = "rel"
    min_scale: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.inner, Plateau):
            raise _refused("inner is a Plateau", "one plateau cannot scale another", "wrap the schedule once")
        if (self.metric is None) != (self.mode is None):
            raise _refused(
                f"metric is {self.metric!r} and mode is {self.mode!r}",
                "one without the other is ambiguous",
                "give both, or neither to follow the run's monitor",
            )
        if self.mode is not None and self.mode not in _MODES:
            raise _refused(f"mode is {self.mode!r}", "the modes are 'min' and 'max'", "give one of them")
        if self.threshold_mode not in ("rel", "abs"):
            raise _refused(f"threshold_mode is {self.threshold_mode!r}", "it is 'rel' or 'abs'", "give one of them")
        if not 0.0 < self.factor < 1.0:
            raise _refused(f"factor is {self.factor}", "a reduction needs 0 < factor < 1", "0.1 is the default")
        for name in ("patience", "cooldown"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _refused(f"{name} is {value!r}", "it counts epochs", "give an integer of 0 or more")
        for name in ("threshold", "min_scale"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise _refused(f"{name} is {value!r}", "it is a size", "give a number of 0 or more")

    def __repr__(self) -> str:
        return f"plateau({self.inner!r}, factor={self.factor!r}, patience={self.patience!r})"


def _refused(what: str, why: str, fix: str) -> ScheduleError:
    return ScheduleError(f"plateau: {what}", why=why, fix=fix)


@dataclass(frozen=True)
class PlateauCounters:
    """Where one plateau stands: JSON in checkpoints, one per schedule key."""

    rule: Plateau
    metric: str
    mode: str
    scale: float = 1.0
    best: float | None = None
    bad_epochs: int = 0
    cooldown_left: int = 0
    reductions: int = 0

    def after(self, metrics: Mapping[str, Any], key: str) -> tuple[PlateauCounters, str | None]:
        """Where it stands after one epoch more, and the sentence to announce if the scale dropped.

        Raises:
            MetricError: the metric is missing or not a real number.
        """
        value = self._read(metrics, key)
        best, bad = (value, 0) if self._improves(value) else (self.best, self.bad_epochs + 1)
        if self.cooldown_left > 0:
            bad = 0
        if bad <= self.rule.patience:
            return replace(self, best=best, bad_epochs=bad, cooldown_left=max(self.cooldown_left - 1, 0)), None
        scale = max(self.scale * self.rule.factor, self.rule.min_scale)
        reduced = replace(self, best=best, bad_epochs=0, cooldown_left=self.rule.cooldown)
        if scale >= self.scale:
            return reduced, None
        epochs = "epoch" if bad == 1 else "epochs"
        said = f"plateau: {key} scaled by {scale:.6g} (was {self.scale:.6g}) after {bad} bad {epochs} of {self.metric}"
        return replace(reduced, scale=scale, reductions=self.reductions + 1), said

    def _read(self, metrics: Mapping[str, Any], key: str) -> float:
        available = ", ".join(sorted(metrics)) or "none"
        if self.metric not in metrics:
            raise MetricError(
                f"the validation has no metric {self.metric!r}",
                where=f"plateau of the schedule {key}",
                why=f"the metrics are: {available}",
                fix="give the plateau metric and mode, or set monitor",
            )
        value = metrics[self.metric]
        try:
            if isinstance(value, bool | str | bytes | complex) or getattr(value, "ndim", 0) != 0:
                raise TypeError
            if str(getattr(value, "dtype", "")) == "bool":
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise MetricError(
                f"metric {self.metric!r} is {type(value).__name__}, not a real number",
                where=f"plateau of the schedule {key}",
                why=f"the metrics are: {available}",
                fix="report a scalar under this name in finalize_metrics",
            ) from None

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        margin = self.rule.threshold
        if self.rule.threshold_mode == "rel":
            # Of the size of the best: of a negative one a fraction of the value itself would ask for less than nothing.
            margin *= abs(self.best)
        return value < self.best - margin if self.mode == "min" else value > self.best + margin

    def state(self) -> dict[str, Any]:
        """JSON-ready counters."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "scale": self.scale,
            "best": self.best,
            "bad_epochs": self.bad_epochs,
            "cooldown_left": self.cooldown_left,
            "reductions": self.reductions,
        }

    def continued(self, state: Mapping[str, Any]) -> PlateauCounters | None:
        """Where `state` stood; None when it belongs to another metric or mode."""
        if (state["metric"], state["mode"]) != (self.metric, self.mode):
            return None
        return replace(
            self,
            scale=float(state["scale"]),
            best=None if state["best"] is None else float(state["best"]),
            bad_epochs=int(state["bad_epochs"]),
            cooldown_left=int(state["cooldown_left"]),
            reductions=int(state["reductions"]),
        )
