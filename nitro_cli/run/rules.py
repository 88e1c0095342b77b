"""The live rules of a run: when it stops early, and what its schedules follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_cli.checkpoints import check_stop_counters
from nitro_cli.errors import warn
from nitro_cli.experiment import EarlyStopping, Experiment, Monitor, StopRule
from nitro_cli.optim import Hyper
from nitro_cli.run.restore import Source
from nitro_cli.run.stopping import EarlyStop

__all__ = ["Rules"]


class Rules:
    """The stop rule and the plateaus of one run, which count its epochs.

    Args:
        e: the experiment.
        monitor: what a rule without a metric of its own goes by.
        hyper: as the run begins.
        source: the record that a resume goes on from.

    Attributes:
        hyper: every traced hyperparameter by step, as the plateaus stand: another object once they took an epoch in.

    Warns:
        NitroWarning: the stop rule cannot go on from the record.
    """

    def __init__(self, e: Experiment, monitor: Monitor | None, hyper: Hyper, source: Source | None) -> None:
        self.hyper = hyper
        self._stop_rule: StopRule | None = None
        rule = e.early_stop
        if isinstance(rule, EarlyStopping):
            watched = rule.watched(monitor)
            assert watched is not None  # setup refuses a rule with nothing to go by
            self._stop_rule = EarlyStop(rule, watched.metric, watched.mode)
        else:
            self._stop_rule = rule
        if source is not None and source.kind == "resume":
            self._continue(source)

    @property
    def exhausted(self) -> bool:
        """Whether early stopping has no patience left."""
        rule = self._stop_rule
        return isinstance(rule, EarlyStop) and rule.wait >= rule.rule.patience

    def should_stop(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Ask the stop rule; without validation it is never asked."""
        return self._stop_rule is not None and bool(metrics) and bool(self._stop_rule.should_stop(epoch, metrics))

    def observe(self, epoch: int, metrics: Mapping[str, Any]) -> list[str]:
        """Feed the epoch's metrics to the plateaus; sentences to announce, one per reduction."""
        if not metrics or not self.hyper.plateaus:
            return []
        self.hyper, said = self.hyper.after(epoch, metrics)
        return said

    def plateau_scales(self) -> dict[str, float]:
        """The scale of every plateau, to log per epoch."""
        return self.hyper.plateau_scales()

    def state(self) -> dict[str, Any]:
        """The counters, for the record."""
        ask = getattr(self._stop_rule, "state", None)
        return {"early_stop": ask() if ask is not None else None, "schedules": self.hyper.state()}

    def _continue(self, source: Source) -> None:
        rule, held = self._stop_rule, source.record.meta.rules.early_stop
        if rule is None:
            return
        if not hasattr(rule, "load_state"):
            warn(f"the stop rule {type(rule).__name__} has no load_state: its counters start fresh on this resume")
        elif held is not None:
            if isinstance(rule, EarlyStop):
                check_stop_counters(held, source.text)
            rule.load_state(held)
