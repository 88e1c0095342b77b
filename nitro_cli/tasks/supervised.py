"""What tasks with targets share: their fields, the hooks they supply, and metrics over the entries that count."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.errors import warn
from nitro_cli.experiment import BatchField, BatchProblem, Declared, Hook, RowSpec, Term
from nitro_cli.metrics import Concat, Max, Mean, Metric, Min, Sum, Undefined, kept_entries, library_of, with_classes
from nitro_cli.tasks.accumulator import TaskAccumulator
from nitro_cli.tasks.batch_values import mask_problem, weight_problem
from nitro_cli.tasks.entries import JudgedEntries, output_leaf, with_head
from nitro_cli.tasks.task import Task

__all__ = ["TARGETS", "SupervisedTask"]

TARGETS = ("label", "labels", "target")
"""The batch fields that hold targets where a task names none: the first that there is."""


class SupervisedTask(Task):
    """A task whose batches hold targets. A further one gives `terms`, `entries`, `decode` and `probabilities`.

    An entry counts where it is not padding, its mask is True, and it has a target; the same ones in loss and metrics.
    """

    prediction_kind: ClassVar[str]
    """The kind of prediction that it makes: `categorical`, `bernoulli` or `continuous`."""

    width_field: ClassVar[str]
    """Its field that says how wide an output is, such as `num_classes`."""

    width_declared: ClassVar[str] = "num_targets"
    """What `Declared` calls that."""

    output: str | None = None
    """Path of the output that it reads, such as `head/logits`; needed where `forward` returns several."""

    target: str | None = None
    """The batch field of the targets; unset, the first of `label`, `labels`, `target` that the batch has."""

    mask: str | None = None
    """The batch field that is True for what counts, per sample or per entry."""

    weight: str | None = None
    """The batch field with the weight of each sample in the loss, 0 or more; metrics count every entry once."""

    id: str | None = None
    """The batch field that names the samples in predictions; unset, their positions do."""

    labels: tuple[str, ...] | None = None
    """The names of classes, labels or targets, in order."""

    metrics: tuple[Metric, ...] = ()
    """What evaluation reports."""

    train_metrics: tuple[Metric, ...] = ()
    """What the train lines report: means over entries."""

    @model_validator(mode="after")
    def _check_declaration(self) -> Self:
        problem = _metric_problem(self, "metrics") or _metric_problem(self, "train_metrics")
        width: Any = getattr(self, self.width_field)
        width = self._names if width is None else width
        problem = problem or (None if width is None else self.misfit(width))
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            twice = next(name for name in self.labels if self.labels.count(name) > 1)
            problem = problem or f"labels: {twice!r} stands twice, and each class has a name of its own"
        if problem is not None:
            raise PydanticCustomError("task", "{told}", {"told": problem})
        return self

    @abstractmethod
    def terms(
        self, outputs: Any, target: Any, *, mask: Any = None, weight: Any = None, valid: Any = None
    ) -> dict[str, Term]:
        """The loss terms of a batch.

        Args:
            outputs: what `forward` returned.
            target: the targets.
            mask: bool[N] or one per entry; what counts.
            weight: f32[N], or None.
            valid: bool[N], False on padding.
        """

    @abstractmethod
    def entries(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> JudgedEntries:
        """The entries of a batch as metrics take them; arguments as of `terms`."""

    @abstractmethod
    def problem(self, outputs: Any, target: Any, counts: Any) -> BatchProblem | None:
        """What is wrong with the targets of a batch on the host, before any step sees them.

        Args:
            outputs: the array that it reads, by shape and dtype, of a batch of any size.
            target: the targets, in NumPy.
            counts: bool[N] or more axes, what the mask lets through; None is everything.
        """

    def check(
        self, outputs: Any, target: np.ndarray, *, mask: np.ndarray | None = None, weight: np.ndarray | None = None
    ) -> BatchProblem | None:
        """What is wrong with a batch on the host: its mask, weights, shapes, targets, and the metrics for such outputs.

        Args:
            outputs: what `forward` returns, by shape and dtype, of a batch of any size.
            target, mask, weight: as of `terms`, in NumPy.
        """
        found = mask_problem(mask, target, self.mask) or weight_problem(weight, self.weight)
        leaf = self._output(outputs)
        found = found or self.problem(leaf, target, mask)
        if found is not None:
            return found
        told = self.misfit(self.width_of(leaf))
        return None if told is None else BatchProblem(told, fix="report it of as many classes as it needs, or leave it")

    def width_of(self, output: Any) -> int:
        """How many classes, labels or values an output has."""
        return int(output.shape[-1]) if len(output.shape) > 1 else 1

    def misfit(self, width: int) -> str | None:
        """Which metric says nothing of outputs so wide, and why; None where all do."""
        told = ((metric.label, metric.misfit(width)) for metric in (*self.metrics, *self.train_metrics))
        return next((f"metric {label}: {why}" for label, why in told if why is not None), None)

    @abstractmethod
    def decode(self, outputs: Any) -> Any:
        """The decisions, samples first."""

    @abstractmethod
    def probabilities(self, outputs: Any) -> Any:
        """The probabilities in the shape of the output; None where there are none."""

    def declares(self, data: Mapping[str, Any]) -> Declared:
        """How wide an output is, and what its columns are called."""
        width: Any = getattr(self, self.width_field)
        width = self._names if width is None else width
        named: dict[str, Any] = {self.width_declared: width}
        return Declared(labels=self.labels, outputs=width, **named)

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> dict[str, Any]:
        """What it leaves open of width, labels and target, as others declare it; `agreed` compares what is written."""
        known = {"labels": declared.labels, "target": declared.target}
        if self.labels is None:  # else they say the width
            known[self.width_field] = getattr(declared, self.width_declared)
        return {name: value for name, value in known.items() if value is not None and getattr(self, name) is None}

    def directions(self) -> dict[str, str]:
        """The natural direction of each metric."""
        return {metric.label: metric.mode for metric in (*self.train_metrics, *self.metrics)}

    def structure(self) -> dict[str, Any]:
        """What a resume must find again: all but the metrics, which no weight depends on."""
        held = super().structure()
        return {name: value for name, value in held.items() if name not in ("metrics", "train_metrics")}

    def sums(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> dict[str, Any]:
        """The sums of every metric over a batch, combinable, with the number of entries that count and, under `kept`,
        what metrics keep; arguments as of `terms`."""
        entries = self.entries(outputs, target, mask=mask, valid=valid)
        odd = library_of(entries.values).isnan(entries.values)
        odd = (odd.any(axis=-1) if odd.ndim > entries.valid.ndim else odd) & entries.valid
        found: dict[str, Any] = {"count": Sum(entries.valid.sum()), "nan": Sum(odd.sum())}
        sums = {metric.label: _combinable(self._summed(metric, entries)) for metric in self.metrics if not metric.keeps}
        kept = {metric.reads: entries.read(metric.reads) for metric in self.metrics if metric.keeps}
        if sums:
            found["sums"] = sums
        if kept:
            rows = len(target)
            kept |= {"target": entries.target, "valid": entries.valid}
            found["kept"] = {name: Concat(x.reshape(rows, -1, *x.shape[1:])) for name, x in kept.items()}
        return found

    def values(self, combined: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of a split, on the host.

        Args:
            combined: what `sums` gave, combined over its batches.

        Returns:
            `count` and every metric, `Undefined` where it has no value.
        """
        count = int(combined["count"])
        found: dict[str, Any] = {"count": count}
        for metric in self.metrics:
            value: Any = Undefined("no entry counts")
            if combined["nan"]:
                value = float("nan")  # a decision of what is not a number would be a class like any other
            elif count:
                value = self._value(metric, combined)
            if isinstance(value, Undefined):
                value = Undefined(value.told(self.labels or ())) if value.instead is None else value.instead
            found[metric.label] = value
        return found

    def accumulator(self) -> TaskAccumulator:
        """Metrics over batches, outside of a run."""
        return TaskAccumulator(self)

    def hooks(self) -> Mapping[str, Hook]:
        """What follows from the task."""
        fields: dict[str, BatchField] = {"target": BatchField((self.target,) if self.target else TARGETS)}
        fields["valid"] = BatchField(("valid",), required=False)
        if self.mask is not None:
            fields["mask"] = BatchField((self.mask,))
        weighted = fields if self.weight is None else {**fields, "weight": BatchField((self.weight,))}
        checked = {name: field for name, field in weighted.items() if name != "valid"}
        found = {"loss": Hook(self._loss, weighted), "check_batch": Hook(self.check, checked)}
        found["export_head"] = Hook(self.export_head)
        if self.train_metrics:
            found["train_metrics"] = Hook(self._train_metrics, fields, residency="device")
        if self.metrics:
            found["metrics"] = Hook(self._metrics, fields, residency="device")
            found["finalize_metrics"] = Hook(self._finalize, follows="metrics")
        return found

    def export_head(self, outputs: Any) -> dict[str, Any]:
        """What an exported program gives: the outputs by their paths (one array is `outputs`), `probabilities`, and
        `decoded`."""
        probabilities, decoded = self.probabilities(outputs), self.decode(outputs)
        made = {} if probabilities is None else {"probabilities": probabilities, "decoded": decoded}
        return with_head(outputs, made)

    @property
    def _names(self) -> int | None:
        """How many labels there are."""
        return None if self.labels is None else len(self.labels)

    def _output(self, outputs: Any) -> Any:
        return output_leaf(outputs, self.output, self.label)

    def _loss(self, outputs: Any, *, target: Any, mask: Any = None, weight: Any = None, valid: Any = None) -> Any:
        return self.terms(outputs, target, mask=mask, weight=weight, valid=valid)

    def _metrics(self, outputs: Any, *, target: Any, mask: Any = None, valid: Any = None) -> Any:
        return self.sums(outputs, target, mask=mask, valid=valid)

    def _train_metrics(self, outputs: Any, *, target: Any, mask: Any = None, valid: Any = None) -> Any:
        entries = self.entries(outputs, target, mask=mask, valid=valid)
        found = {}
        for metric in self.train_metrics:
            total, count = metric.mean(self._summed(metric, entries))
            found[metric.label] = Mean(total, count)
        return found

    def _finalize(self, acc: Mapping[str, Any], split: str) -> dict[str, Any]:
        if acc["nan"]:
            warn(
                f"split {split!r}: an output of {acc['nan']} of {acc['count']} entries is not a number, so no metric is"
            )
        return self.values(acc)

    def _summed(self, metric: Metric, entries: JudgedEntries) -> Mapping[str, Any]:
        width = entries.values.shape[-1]
        return with_classes(metric, width).sums(entries.target, entries.read(metric.reads), entries.valid)

    def _value(self, metric: Metric, combined: Mapping[str, Any]) -> Any:
        if not metric.keeps:
            return metric.value({name: np.asarray(x) for name, x in combined["sums"][metric.label].items()})
        kept = {name: x.reshape(-1, *x.shape[2:]) for name, x in combined["kept"].items()}
        return metric.value(*kept_entries(kept["target"], kept[metric.reads], kept["valid"]))


def _combinable(sums: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x if isinstance(x, Max | Min | Sum) else Sum(x) for name, x in sums.items()}


def _metric_problem(task: SupervisedTask, field: str) -> str | None:
    metrics: Sequence[Metric] = getattr(task, field)
    names = [metric.label for metric in metrics]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f'{field}: two metrics are called {twice}; name one: {{ id = "{twice}", name = ... }}'
    for metric in metrics:
        if not metric.is_of(task.prediction_kind):
            return f"{field}: {metric.label} is no metric of {task.prediction_kind} predictions"
        if metric.label == "count":
            return f"{field}: a metric cannot be called count, as the number of entries is"
        if field == "train_metrics" and type(metric).mean is Metric.mean:
            return f"{field}: {metric.label} is no mean over entries, as train lines take; report it by `metrics`"
    return None
