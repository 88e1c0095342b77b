"""The live rules of a run: when it stops early, what its schedules follow, and what else counts along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nitro_cli.checkpoints import RecordedComponent, check_stop_counters
from nitro_cli.errors import warn
from nitro_cli.experiment import Callback, Criterion, EarlyStopping, Experiment, StopRule, monitor_policy, of_training
from nitro_cli.metrics import check_scalar
from nitro_cli.optim import Hyper
from nitro_cli.run.components import ComponentLoads, Components, ResumeStatus
from nitro_cli.run.monitor_watch import MonitorWatch
from nitro_cli.run.restore import Source
from nitro_cli.run.stopping import EarlyStop

__all__ = ["Rules"]


class Rules:
    """The stop rule and the plateaus of one run, which count its epochs, and its other components.

    Args:
        e: the experiment.
        monitor: what the run is judged by, and a rule without a metric of its own goes by.
        hyper: as the run begins.
        components: those of the experiment, by name.
        callbacks: copies of this handle's.

    Attributes:
        hyper: every traced hyperparameter by step, as the plateaus stand: another object once they took an epoch in.
        began: how the handle began.
        callbacks: those that training tells; such as have a state are components.
    """

    def __init__(
        self,
        e: Experiment,
        monitor: Criterion | None,
        hyper: Hyper,
        components: Mapping[str, Any],
        callbacks: tuple[Callback, ...],
    ) -> None:
        self.hyper = hyper
        self.began = ResumeStatus("fresh")
        self._stop_rule: StopRule | None = None
        rule = e.early_stop
        if isinstance(rule, EarlyStopping):
            watched = rule.watched(monitor)
            assert watched is not None  # setup refuses a rule with nothing to go by
            self._stop_rule = EarlyStop(rule, watched.metric, watched.mode)
        else:
            self._stop_rule = rule
        kept = hasattr(self._stop_rule, "state") and hasattr(self._stop_rule, "load_state")
        self.callbacks = callbacks
        self.monitor = MonitorWatch(monitor, monitor_policy(e))
        with_state = {f"callbacks.{c.label}": c for c in callbacks if hasattr(c, "state") and hasattr(c, "load_state")}
        rule_kept = {"early_stop": _KeptRule(self._stop_rule)} if kept else {}
        self._components = Components(
            {**rule_kept, **({"monitor": self.monitor} if monitor is not None else {}), **components, **with_state}
        )

    @property
    def exhausted(self) -> bool:
        """Whether early stopping has no patience left."""
        rule = self._stop_rule
        return isinstance(rule, EarlyStop) and rule.wait >= rule.rule.patience

    def should_stop(self, epoch: int, metrics: Mapping[str, Any], trained: Mapping[str, Any]) -> bool:
        """Ask the stop rule; without validation it is asked only where it goes by the train split.

        Args:
            epoch: the epoch.
            metrics: of its validation; empty without one.
            trained: of the train split.
        """
        rule = self._stop_rule
        if not isinstance(rule, EarlyStop):
            return rule is not None and bool(metrics) and bool(rule.should_stop(epoch, metrics))
        values = _seen(rule.metric, metrics, trained)
        return bool(values) and not self.monitor.leaves_out(rule.metric, values) and rule.should_stop(epoch, values)

    def observe(self, epoch: int, metrics: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
        """Feed the epoch's metrics to the plateaus; sentences to announce, one per reduction.

        Args:
            epoch, metrics, trained: as of `should_stop`.
        """
        plateaus = self.hyper.plateaus
        shown = {key: _seen(counters.metric, metrics, trained) for key, counters in plateaus.items()}
        leaving = [
            key for key, values in shown.items() if not values or self.monitor.leaves_out(plateaus[key].metric, values)
        ]
        if len(leaving) == len(plateaus):
            return []
        self.hyper, said = self.hyper.after(epoch, {**trained, **metrics}, leaving)
        return said

    def score(
        self, selection: Criterion | None, metrics: Mapping[str, Any], trained: Mapping[str, Any]
    ) -> float | None:
        """What the checkpoint of an epoch is ranked by; None where it has no score.

        Args:
            selection: the metric that checkpoints are ranked by.
            metrics, trained: as of `should_stop`.

        Raises:
            MetricError: it is missing, or no number.
        """
        values = {} if selection is None else _seen(selection.metric, metrics, trained)
        if selection is None or not values or self.monitor.leaves_out(selection.metric, values):
            return None
        return check_scalar(values.get(selection.metric), f"the checkpointer's metric {selection.metric!r}", values)

    def plateau_scales(self) -> dict[str, float]:
        """The scale of every plateau, to log per epoch."""
        return self.hyper.plateau_scales()

    def epoch_row(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """What components that have an `epoch_row(sums)` add to the row of an epoch that has ended.

        Args:
            sums: of its train metrics, over the steps that were taken.
        """
        return self._components.epoch_row(sums)

    def state(self) -> dict[str, Any]:
        """The counters of the stop rule and the plateaus, for the record."""
        ask = getattr(self._stop_rule, "state", None)
        return {"early_stop": ask() if ask is not None else None, "schedules": self.hyper.state()}

    def components(self) -> tuple[dict[str, RecordedComponent], dict[str, np.ndarray]]:
        """The states of all other components for the record, and the arrays in them."""
        return self._components.recorded(leaving="early_stop")

    def planned(self, source: Source) -> ComponentLoads:
        """What a resume will give back to the components; nothing is touched.

        Raises:
            ComponentError: it cannot be given back.
            IntegrityError: the counters of early stopping in the record are none.

        Warns:
            NitroWarning: a component goes on from nothing.
        """
        rule, held = self._stop_rule, source.record.meta.rules.early_stop
        if rule is not None and not hasattr(rule, "load_state"):
            warn(f"the stop rule {type(rule).__name__} has no load_state: its counters start fresh on this resume")
        if held is not None and isinstance(rule, EarlyStop):
            check_stop_counters(held, source.text)
        return self._components.planned(source)

    def begin(self, source: Source | None, loads: ComponentLoads | None, history: Iterable[Mapping[str, Any]]) -> None:
        """Give the components their states back, and note how the handle began."""
        if loads is not None:
            loads.load()
            if "monitor" not in loads.states:
                self.monitor.catch_up(history)
        plateaus = ("schedules",) if self.hyper.plateaus else ()
        restored = tuple(loads.states) if loads is not None else ()
        if loads is not None and source is not None and source.record.meta.rules.schedules:
            restored = (*restored, *plateaus)
        fresh = tuple(name for name in (*self._components, *plateaus) if name not in restored)
        self.began = ResumeStatus.of(source, restored, fresh)


def _seen(metric: str, metrics: Mapping[str, Any], trained: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a rule that goes by a metric is shown of an epoch; empty where there was nothing of its kind."""
    return {**trained, **metrics} if of_training(metric) else metrics


class _KeptRule:
    """The stop rule as a component; a rule of one's own knows no versions."""

    required = False

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def state(self) -> Any:
        return self._rule.state()

    def load_state(self, state: Any, version: int) -> None:
        self._rule.load_state(state)
