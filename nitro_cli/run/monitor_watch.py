"""The monitor of a run: its value in each epoch, and whether that is the best so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nitro_cli.errors import MetricError, warn
from nitro_cli.experiment import Criterion, Monitor, of_training
from nitro_cli.metrics import check_scalar

__all__ = ["MonitorWatch"]


class MonitorWatch:
    """What the monitor was, epoch by epoch; a component, which an older record need not have.

    Args:
        criterion: the metric and its mode; None where the run is judged by nothing.
        policy: what an epoch without a usable value means.
    """

    required = False

    def __init__(self, criterion: Criterion | None, policy: Monitor) -> None:
        self.criterion = criterion
        self._policy = policy
        self._best: float | None = None

    def leaves_out(self, metric: str, values: Mapping[str, Any]) -> bool:
        """Whether rules that go by a metric decide nothing in an epoch with these values: it is missing, and may be."""
        mine = self.criterion is not None and metric == self.criterion.metric
        return mine and self._policy.on_missing == "skip" and values.get(metric) is None

    def read(self, epoch: int, values: Mapping[str, Any], *, validated: bool) -> dict[str, Any] | None:
        """The value of an epoch, for its row: `value`, `status`, `improved`; None where nothing was to be read.

        Args:
            epoch: the epoch.
            values: its metrics, those of training among them.
            validated: whether there was a validation.

        Raises:
            MetricError: the value is missing or not finite, and the policy says that this is an error.

        Warns:
            NitroWarning: it is not finite.
        """
        if self.criterion is None or not (validated or of_training(self.criterion.metric)):
            return None
        metric = self.criterion.metric
        if self.leaves_out(metric, values):
            return {"value": None, "status": "missing", "improved": False}
        value = check_scalar(values.get(metric), f"monitor {metric!r}", values)
        if math.isfinite(value):
            return {"value": value, "status": "ok", "improved": self._take(value)}
        if self._policy.on_nonfinite == "error":
            raise MetricError(
                f"the monitor {metric} is {value} at epoch {epoch}",
                why='on_nonfinite = "error" fails the run then',
                fix='look for the cause, or let such an epoch count as a bad one: on_nonfinite = "skip"',
            )
        warn(f"{metric} is {value} at epoch {epoch}: a bad epoch for every rule that follows it")
        return {"value": None, "status": "nonfinite", "improved": False}

    def _take(self, value: float) -> bool:
        assert self.criterion is not None
        best = self._best
        better = best is None or (value < best if self.criterion.mode == "min" else value > best)
        if better:
            self._best = value
        return better

    def catch_up(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the rows of a history whose record has no state of the monitor."""
        if self.criterion is None:
            return
        for row in rows:
            value = row.get(self.criterion.metric)
            if isinstance(value, int | float) and math.isfinite(value):
                self._take(float(value))

    def state(self) -> dict[str, Any]:
        """The best so far, and of what."""
        metric, mode = self.criterion or (None, None)
        return {"metric": metric, "mode": mode, "best": self._best}

    def load_state(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from a record; under another metric or mode the best begins anew."""
        if (state["metric"], state["mode"]) == (self.criterion or (None, None)):
            self._best = state["best"]
