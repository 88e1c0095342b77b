"""One of several classes per entry."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from nitro_cli.experiment import BatchProblem, Term
from nitro_cli.metrics import F1, Accuracy, Metric, Precision, Recall, library_of
from nitro_cli.tasks.batch_values import class_problem, share_problem, width_problem
from nitro_cli.tasks.entries import JudgedEntries, per_entry, spread_valid, widened
from nitro_cli.tasks.field_values import ClassWeights, Share
from nitro_cli.tasks.supervised import SupervisedTask
from nitro_cli.tasks.task import register_task

__all__ = ["Categorical"]


@register_task("categorical")
class Categorical(SupervisedTask):
    """Classes that exclude each other: logits (N, ..., C), and class numbers (N, ...) or distributions over classes.

    Its term `cross_entropy` is PyTorch's, with class weights and label smoothing. In metrics a target that is a
    distribution counts as its first largest class.

    Args:
        num_classes: how many classes; None takes them from the outputs.
    """

    prediction_kind = "categorical"
    width_field = "num_classes"
    width_declared = "num_classes"

    num_classes: Annotated[int, Field(ge=2)] | None = None
    """How many classes; None takes them from the outputs."""

    class_axis: int = -1
    """The axis of the classes in outputs and distributions; never axis 0, which is the samples."""

    ignore_index: int | None = None
    """The target of what does not count."""

    label_smoothing: Share = 0.0
    """The share of a target that is spread over all classes, 0 to 1."""

    class_weights: ClassWeights = 1.0
    """The weight of each class in the loss, one number for all or one for each; finite, 0 or more."""

    metrics: tuple[Metric, ...] = (Accuracy(), F1(), Recall(), Precision())
    """What evaluation reports."""

    train_metrics: tuple[Metric, ...] = (Accuracy(),)
    """What the train lines report: means over entries."""

    def __init__(self, num_classes: int | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
        super().__init__(**given, **values)

    def loss(self, outputs: Any, target: Any, **words: Any) -> dict[str, Term]:
        """The loss of a batch, as `terms` gives it; for a `loss` hook of one's own."""
        return self.terms(outputs, target, **words)

    def terms(
        self, outputs: Any, target: Any, *, mask: Any = None, weight: Any = None, valid: Any = None
    ) -> dict[str, Term]:
        """Cross-entropy, `sum_i [(1-s) w_y (-log p_y) + s/C sum_c w_c (-log p_c)]` over `sum_i w_y`; arguments as of
        `SupervisedTask.terms`. A distribution y has `w_y = sum_c y_c w_c`."""
        import jax
        import jax.numpy as jnp

        logits, wanted, counts = self._aligned(outputs, target, mask, valid)
        classes = logits.shape[-1]
        if wanted.ndim < logits.ndim:
            wanted = jnp.arange(classes) == wanted[..., None]
        weights = jnp.asarray(self.class_weights, logits.dtype)
        smoothing = jnp.asarray(self.label_smoothing, logits.dtype)
        hot = jnp.where(counts[..., None], wanted, 0).astype(logits.dtype)
        shared = (1 - smoothing) * hot + smoothing / classes
        # Entries that do not count may hold anything, and a class masked by -inf has no part in what has no weight.
        log_p = jax.nn.log_softmax(jnp.where(counts[..., None], logits, 0), axis=-1)
        each = jnp.where(shared * weights > 0, -shared * weights * log_p, 0).sum(axis=-1)
        scale = counts.astype(logits.dtype)
        if weight is not None:
            scale = scale * per_entry(weight.astype(logits.dtype), counts.shape)
        return {"cross_entropy": Term((scale * each).sum(), (scale * (hot * weights).sum(axis=-1)).sum())}

    def entries(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> JudgedEntries:
        """The entries of a batch as metrics take them; arguments as of `SupervisedTask.terms`."""
        logits, wanted, counts = self._aligned(outputs, target, mask, valid)
        xp = library_of(logits)
        if wanted.ndim == logits.ndim:
            wanted = wanted.argmax(axis=-1)
        flat = logits.reshape(-1, logits.shape[-1])
        return JudgedEntries(
            target=xp.where(counts, wanted, 0).astype(np.int32).reshape(-1),
            valid=counts.reshape(-1),
            values=flat,
            decoded=flat.argmax(axis=-1).astype(np.int32),
            probabilities=_softmax(flat, -1),
        )

    def problem(self, outputs: Any, target: Any, counts: Any) -> BatchProblem | None:
        """What is wrong with the targets of a batch; arguments as of `SupervisedTask.problem`."""
        rank = len(outputs.shape)
        axis = self.class_axis + rank if self.class_axis < 0 else self.class_axis
        if not 0 < axis < rank:
            return BatchProblem(
                f"the output has the shape {list(outputs.shape)}, without a class axis {self.class_axis}",
                why="a categorical task takes logits (N, ..., C)",
                fix="return logits from forward, or name another output or class_axis",
            )
        classes = outputs.shape[axis]
        sizes = {"num_classes": self.num_classes, "labels": self._names}
        weights = np.shape(self.class_weights)
        found = width_problem(classes, "classes", sizes | ({"class_weights": weights[0]} if len(weights) == 1 else {}))
        if found is not None:
            return found
        if target.ndim == rank and target.dtype.kind == "f":
            moved = np.moveaxis(target, axis, -1)
            return share_problem(moved, counts, classes)
        return class_problem(target, counts, classes, rank - 1, self.ignore_index)

    def width_of(self, output: Any) -> int:
        """How many classes an output has."""
        return int(output.shape[self.class_axis])

    def decode(self, outputs: Any) -> Any:
        """The first class of the largest output: i32, the outputs' shape without the class axis."""
        return self._output(outputs).argmax(axis=self.class_axis).astype(np.int32)

    def probabilities(self, outputs: Any) -> Any:
        """The softmax over the class axis, in float32 at least."""
        return _softmax(widened(self._output(outputs)), self.class_axis)

    def _aligned(self, outputs: Any, target: Any, mask: Any, valid: Any) -> tuple[Any, Any, Any]:
        """Logits with the classes last, targets alike, and which entries count."""
        raw = self._output(outputs)
        xp = library_of(raw)
        logits = xp.moveaxis(widened(raw), self.class_axis, -1)
        if target.ndim == logits.ndim:
            wanted = xp.moveaxis(widened(target), self.class_axis, -1)
            has = ~xp.isnan(wanted).any(axis=-1)
        else:
            wanted = target
            has = target == target if self.ignore_index is None else target != self.ignore_index
        return logits, wanted, spread_valid(has, mask, valid)


def _softmax(logits: Any, axis: int) -> Any:
    xp = library_of(logits)
    shifted = xp.exp(logits - logits.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)
