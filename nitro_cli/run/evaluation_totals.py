"""What one pass over a split adds up: the experiment's metrics and, beside or instead of them, the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.data import Split
from nitro_cli.errors import HookError, MetricError
from nitro_cli.metrics import Concat, Mean, SplitAccumulator, check_reported
from nitro_cli.programs import PackedSums
from nitro_cli.run.plan import Plan
from nitro_cli.run.term_totals import TermTotals

__all__ = ["EvaluationTotals", "real_rows"]

MOST_UNFOLDED = 256
"""Batches whose sums are kept before they are added up."""


class EvaluationTotals:
    """Collects one pass.

    Args:
        plan: of the run.
        split: that is evaluated.

    Attributes:
        on_device: which of `metrics` and `loss` the device computes.
        sums_alone: whether these are all, and know padding: then no outputs are wanted on the host.
    """

    def __init__(self, plan: Plan, split: Split) -> None:
        self._routing = plan.hooks.routed
        self._split = split
        e = plan.experiment
        self._custom = self._routing.table.has("metrics")
        self._metrics = SplitAccumulator("metrics", split.name)
        self._losses = SplitAccumulator("loss", split.name)
        self._terms = TermTotals(split.name)
        on_device: set[str] = set()
        if self._custom and plan.hooks.residency["metrics"] == "device":
            on_device.add("metrics")
        if not self._custom or e.eval_loss:
            signature = self._routing.signatures.get("loss")
            if signature is not None and not signature.lacking(split.fields):
                on_device.add("loss")
        self.on_device = frozenset(on_device)
        self.sums_alone = (
            bool(on_device)
            and (not self._custom or "metrics" in on_device)
            and on_device <= self._routing.padded
            and plan.placement.layout is None
        )
        self._packed: PackedSums | None = None
        self._unread: list[Mapping[str, np.ndarray]] = []

    def add(
        self, index: int, host: Mapping[str, np.ndarray], outputs: Any, real: int, extra: Any, *, view: Any
    ) -> None:
        """Fold one batch in. Reads device values back."""
        device_metrics, loss = extra
        if self._custom:
            if device_metrics is not None:
                values = _entries_of(jax.tree.map(np.asarray, device_metrics), real)
            else:
                values = self._routing.call(view, "metrics", real_rows(outputs, real), batch=host)
            self._metrics.add(values, batch=index, samples=real)
        if loss is not None and "loss" in loss:
            # The loss of a batch counts for its rows, or that of a short last batch would weigh more.
            means = {name: Mean(float(term.numerator) * real, real) for name, term in loss.items()}
            self._losses.add(means, batch=index)
        elif loss is not None:
            self._terms.add(loss)

    def add_sums(self, packed: PackedSums, vectors: Mapping[str, jax.Array]) -> None:
        """Fold in what the program of a batch added up. Reads it back."""
        if packed is not self._packed or len(self._unread) == MOST_UNFOLDED:
            self._fold()
        self._packed = packed
        self._unread.append({name: np.asarray(vector) for name, vector in vectors.items()})

    def _fold(self) -> None:
        if not self._unread or self._packed is None:
            return
        found = self._packed.combined(self._unread)
        self._unread = []
        if "metrics" in found:
            self._metrics.add(found["metrics"])
        if "loss" in found:
            self._terms.add(found["loss"])

    def results(self, view: Any) -> dict[str, Any]:
        """The reported values under flat names: finalized metrics, and the losses of the split."""
        self._fold()
        losses = self._losses.result() if self._losses else self._terms.result()
        combined = self._metrics.result() if self._custom else losses
        returned = self._routing.table.call(view, "finalize_metrics", combined, self._split.name)
        if not isinstance(returned, Mapping):
            raise HookError(
                f"`finalize_metrics` returned {type(returned).__name__}", fix="return a mapping of names to values"
            )
        reported = check_reported(returned, concatenated=self._metrics.concatenated, split=self._split.name)
        if not self._custom:
            return reported
        clash = sorted(set(reported) & set(losses))
        if clash:
            raise MetricError(
                f"{', '.join(clash)} is reported both by the experiment's metrics and by eval_loss",
                fix="rename the metric, or set eval_loss = false",
            )
        return {**reported, **losses}


def _entries_of(metrics: Any, real: int) -> Any:
    """Device metrics without the entries of padding, where they keep one per sample."""

    def cut(value: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[:real], value) if isinstance(value, Concat) else value

    return jax.tree.map(cut, metrics, is_leaf=lambda value: isinstance(value, Concat))


def real_rows(outputs: Any, real: int) -> Any:
    """Outputs on the host without the padding; the program made sure that each leaf's first axis is the batch."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:real], outputs)
