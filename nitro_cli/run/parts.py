"""What setup leaves behind: every resolved piece of a handle, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import RecordedField, SourceOfWeights
from nitro_cli.data import FieldSpec, Split
from nitro_cli.distributed import WatchedDist
from nitro_cli.errors import HookError
from nitro_cli.experiment import (
    Experiment,
    HookTable,
    Monitor,
    Routing,
    host_view,
    resolve_routing,
    selection_of,
)
from nitro_cli.optim import Hyper, Optimizer, ParamLayout, PerturbRule
from nitro_cli.programs import AdaptedModel
from nitro_cli.registry import Resolved
from nitro_cli.run.devices import Placement
from nitro_cli.run.report import SetupReport

__all__ = ["TRACED_HOOKS", "Parts", "hook_residency"]

TRACED_HOOKS = ("forward", "loss", "train_metrics", "metrics", "train_step")


def hook_residency(hooks: HookTable, e: Experiment) -> dict[str, str]:
    """Where each metric hook runs: `host` or `device`.

    Raises:
        HookError: `metrics_residency` returned something else.
    """
    found: dict[str, str] = {hook: hooks.call(e, "metrics_residency", hook) for hook in ("metrics", "train_metrics")}
    for hook, where in found.items():
        if not isinstance(where, str) or where not in ("host", "device"):
            raise HookError(
                f"`metrics_residency` returned {where!r} for {hook!r}",
                fix="return 'host' or 'device', and super().metrics_residency(hook) for a hook that stays where it is",
            )
    return found


@dataclass
class Parts:
    """The resolved pieces of a handle, filled in by the setup steps in their order.

    `resolved` holds the knobs of this run and the derived values, each with its origin; `derived` all that `derive`
    returned, also where a person's value is used in its place; `device` the Device fields as arrays. `position`
    counts the micro-batches taken in the epoch `epoch`; `epoch_closed` says whether that epoch was validated and
    recorded. `steps_per_dispatch` is the most steps of one call, None before the first. `w0` is dropped once the
    anchors are made from it; `w0_source` says which loaded weights it was, if any. `weights_step` is the step that
    loaded weights are of, which scheduled Device fields are read at; None where that is `step`.
    """

    resolved: Resolved
    hooks: HookTable
    report: SetupReport
    monitor: Monitor | None
    seed: int
    source: Any = None
    derived: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    dist: WatchedDist = field(default_factory=WatchedDist)
    splits: dict[str, Split] = field(default_factory=dict)
    placement: Placement = field(default=None)  # type: ignore[assignment]
    device: dict[str, jax.Array] = field(default_factory=dict)
    model: AdaptedModel = field(default=None)  # type: ignore[assignment]
    params: Any = None
    state: Any = None
    w0: Any = None
    w0_source: SourceOfWeights | None = None
    layout: ParamLayout = field(default=None)  # type: ignore[assignment]
    residency: dict[str, str] = field(default_factory=dict)
    routing: Routing = field(default=None)  # type: ignore[assignment]
    outputs_checked: bool = False
    hyper: Hyper = field(default=None)  # type: ignore[assignment]
    optimizer: Optimizer | None = None
    rule: PerturbRule | None = None
    anchors: dict[str, Any] = field(default_factory=dict)
    anchor_checksums: dict[str, str] = field(default_factory=dict)
    key: Any = None
    manual: bool = False
    step: int = 0
    epoch: int = 0
    position: int = 0
    epoch_closed: bool = True
    epoch_sums: tuple[float, int] = (0.0, 0)
    stream_state: Any = None
    total_steps: int = 0
    weights_step: int | None = None
    width: int | None = None
    steps_per_dispatch: int | None = None

    @property
    def selection(self) -> Monitor | None:
        """The metric and mode that the checkpoints are ranked by; None where nothing is scored."""
        return selection_of(self.experiment)

    @property
    def experiment(self) -> Experiment:
        """The experiment with the values that are used."""
        return self.resolved.experiment

    @property
    def preset(self) -> str | None:
        """The preset's name."""
        return self.resolved.preset

    @property
    def batch_fields(self) -> Mapping[str, FieldSpec]:
        """The fields of a batch: of the `train` split, else of the first there is, else as the record of the weights
        has them; empty where nothing is known.
        """
        if self.splits:
            return (self.splits.get("train") or next(iter(self.splits.values()))).fields
        recorded = self.source.record.meta.batch_fields if self.source is not None else {}
        return {name: FieldSpec(np.dtype(entry.dtype), tuple(entry.shape)) for name, entry in recorded.items()}

    def recorded_fields(self) -> dict[str, RecordedField]:
        """`batch_fields` as a record holds them."""
        fields = self.batch_fields.items()
        return {name: RecordedField(dtype=str(spec.dtype), shape=list(spec.shape)) for name, spec in fields}

    @property
    def keep_host_batches(self) -> bool:
        """Whether the loop must keep each step's host batch: train metrics that run on the host."""
        return self.host_train_metrics

    @property
    def host_train_metrics(self) -> bool:
        """Whether `train_metrics` runs on the host."""
        return "train_metrics" in self.routing.hooks and self.residency.get("train_metrics") == "host"

    def traced_hooks(self) -> tuple[str, ...]:
        """The hooks whose fields go to the device."""
        on_host = {hook for hook, where in self.residency.items() if where == "host"}
        return tuple(hook for hook in TRACED_HOOKS if hook not in on_host)

    def device_now(self) -> dict[str, jax.Array]:
        """The Device fields with scheduled ones at the step that the weights in hand are of."""
        if self.hyper is None or not self.hyper.scheduled_device_fields:
            return self.device
        step = self.step if self.weights_step is None else self.weights_step
        values = self.hyper.device_values(max(step, 1), 1)
        now = {name: np.asarray(value[0], self.device[name].dtype) for name, value in values.items()}
        return {**self.device, **self.placement.put(now)}

    def host_view(self) -> Experiment:
        """The experiment for host hooks: Device fields as host arrays, everything else as it is."""
        return host_view(self.experiment, {name: np.asarray(value) for name, value in self.device_now().items()})

    def forward_fields(self) -> tuple[str, ...]:
        """The batch fields that `forward` takes; without any batch yet those that it cannot do without."""
        if self.routing is None:
            return self.hooks.fields("forward").required
        return self.routing.fields_for("forward")

    def route_for_prediction(self, batch: Mapping[str, np.ndarray]) -> None:
        """Check that the batch has what `forward` needs; without any split this is where routing is resolved."""
        if self.routing is None:
            self.routing = resolve_routing(self.hooks, tuple(batch), traced=("forward",))
        else:
            self.routing.signatures["forward"].fields_for(tuple(batch), "the batch to predict")

    def prediction_width(self, real: int) -> int:
        """The compiled batch size: that of the splits, or of the first batch ever predicted."""
        if self.width is None:
            sizes = [split.batch_size for name, split in self.splits.items() if name != "train"]
            sizes = sizes or [split.batch_size for split in self.splits.values()]
            self.width = max(sizes) if sizes else self.placement.width(real)
        return self.width
