"""What setup decides, piece by piece: frozen values that nothing changes any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import RecordedField, SourceOfWeights
from nitro_cli.data import FieldSpec, Split
from nitro_cli.experiment import Criterion, Experiment, HookTable, Routing, selection_of
from nitro_cli.optim import Hyper, Optimizer, ParamLayout, PerturbRule
from nitro_cli.programs import AdaptedModel, EvalPlan
from nitro_cli.registry import Resolved
from nitro_cli.run.devices import Placement
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import Source

__all__ = ["DataPlan", "HookPlan", "ModelPlan", "OptimPlan", "Plan", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The configuration of a handle.

    Attributes:
        given: the configuration before the knobs of this call.
        resolved: with them and with the derived values, each value with its origin.
        run_dir: where its runs lie.
        import_path: where its class is found again, as records say it.
        hooks: the hooks that there are, and who supplies each.
        monitor: the metric the run is judged by, or None.
        seed: of the run; of a resume that of its record.
        derived: all that `derive` returned, also where a person's value is used in its place.
        kept: files that the run keeps in its directory, by name.
    """

    given: Resolved
    resolved: Resolved
    run_dir: Path
    import_path: str
    hooks: HookTable
    monitor: Criterion | None
    seed: int
    derived: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        """The experiment with the values that are used."""
        return self.resolved.experiment

    @property
    def recorded(self) -> Resolved:
        """The configuration as the run records it: a `max_time` given to this call alone is not in it."""
        return self.resolved.taking("max_time", self.given)

    @property
    def selection(self) -> Criterion | None:
        """The metric and mode that the checkpoints are ranked by; None where nothing is scored."""
        return selection_of(self.experiment)


@dataclass(frozen=True)
class DataPlan:
    """Where batches come from.

    Attributes:
        sources: by name, as `build_data` or `data=` gave them.
        splits: the inspected splits.
        recorded: the fields of a batch as the record of the weights has them.
    """

    sources: Mapping[str, Any]
    splits: Mapping[str, Split]
    recorded: Mapping[str, FieldSpec]

    @property
    def batch_fields(self) -> Mapping[str, FieldSpec]:
        """The fields of a batch: of the `train` split, else of the first there is, else as the record has them."""
        if self.splits:
            return (self.splits.get("train") or next(iter(self.splits.values()))).fields
        return self.recorded

    @property
    def recorded_fields(self) -> dict[str, RecordedField]:
        """`batch_fields` as a record holds them."""
        fields = self.batch_fields.items()
        return {name: RecordedField(dtype=str(spec.dtype), shape=list(spec.shape)) for name, spec in fields}

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtypes of batch fields as any split, or the record of the weights, knows them."""
        known = {name: spec.dtype for name, spec in self.recorded.items()}
        for split in self.splits.values():
            known |= {name: spec.dtype for name, spec in split.fields.items()}
        return known


@dataclass(frozen=True)
class HookPlan:
    """Which hooks run, where, and on which fields of a batch.

    Attributes:
        manual: the experiment's own `train_step` does the whole step.
        residency: `host` or `device` per metric hook.
        routing: None for a handle without splits, whose first batch to predict decides.
    """

    manual: bool
    residency: Mapping[str, str]
    routing: Routing | None

    @property
    def routed(self) -> Routing:
        """The routing of a handle that has splits."""
        assert self.routing is not None
        return self.routing

    @property
    def host_train_metrics(self) -> bool:
        """Whether `train_metrics` runs on the host."""
        return "train_metrics" in self.routed.hooks and self.residency.get("train_metrics") == "host"


@dataclass(frozen=True)
class ModelPlan:
    """The model without its numbers.

    Attributes:
        adapted: the model as the programs call it.
        layout: its parameters by path and group.
        key: the random key that steps fold in.
    """

    adapted: AdaptedModel
    layout: ParamLayout
    key: jax.Array


@dataclass(frozen=True)
class OptimPlan:
    """How a step changes the parameters.

    Attributes:
        hyper: every traced hyperparameter by optimizer step, as the plateaus stand where the run begins.
        total_steps: optimizer steps of the whole run; 0 where nothing is known of it.
        optimizer: the groups' rules; None in manual mode and for a handle that cannot train.
        rule: the perturbing gradient rule, or None for the plain gradient.
        anchors: what decay pulls each group to, on the device.
        anchor_checksums: of the same by group, for the record.
        w0_source: which loaded weights `w0` was, if any.
    """

    hyper: Hyper
    total_steps: int
    optimizer: Optimizer | None = None
    rule: PerturbRule | None = None
    anchors: Mapping[str, Any] = field(default_factory=dict)
    anchor_checksums: Mapping[str, str] = field(default_factory=dict)
    w0_source: SourceOfWeights | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that a run is made from, decided.

    Attributes:
        settings, data, hooks, model, optim: the pieces.
        placement: the devices.
        report: what setup decided, in words; what compiling decides joins it.
        source: where the weights come from, without its arrays; None for fresh ones.
    """

    settings: Settings
    data: DataPlan
    hooks: HookPlan
    model: ModelPlan
    optim: OptimPlan
    placement: Placement
    report: SetupReport
    source: Source | None = None

    @property
    def experiment(self) -> Experiment:
        """The experiment with the values that are used."""
        return self.settings.experiment

    @property
    def splits(self) -> Mapping[str, Split]:
        """The inspected splits by name."""
        return self.data.splits

    @property
    def resumed(self) -> Source | None:
        """The source of a resume."""
        return self.source if self.source is not None and self.source.kind == "resume" else None

    @cached_property
    def forward_fields(self) -> tuple[str, ...]:
        """The batch fields that `forward` takes; without any batch yet those that it cannot do without."""
        if self.hooks.routing is None:
            return self.settings.hooks.fields("forward").required
        return self.hooks.routing.fields_for("forward")

    def evaluated(self, routing: Routing | None = None) -> EvalPlan:
        """What evaluation programs are made from, with the routing of a first batch where setup saw none."""
        used = routing or self.hooks.routed
        return EvalPlan(self.experiment, used, self.model.adapted, self.placement.layout)
