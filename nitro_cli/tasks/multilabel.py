"""Labels that do not exclude each other."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from nitro_cli.experiment import BatchProblem, Term
from nitro_cli.metrics import F1, ElementAccuracy, Metric, SubsetAccuracy, library_of
from nitro_cli.tasks.batch_values import column_problem
from nitro_cli.tasks.columns import columns_of, weighed
from nitro_cli.tasks.entries import JudgedEntries, widened
from nitro_cli.tasks.field_values import ClassWeights, Share
from nitro_cli.tasks.supervised import SupervisedTask
from nitro_cli.tasks.task import register_task

__all__ = ["Multilabel"]


@register_task("multilabel")
class Multilabel(SupervisedTask):
    """Any number of labels per sample: logits (N, L) and targets 0 to 1 alike, NaN where there is none; (N,) if L is 1.

    Its term is `binary_cross_entropy`, the mean over the entries that count.

    Args:
        num_labels: how many labels; None takes them from the outputs.
    """

    prediction_kind = "bernoulli"
    width_field = "num_labels"

    num_labels: Annotated[int, Field(ge=1)] | None = None
    """How many labels; None takes them from the outputs."""

    threshold: Share = 0.5
    """The probability from which a label is decided to be there."""

    pos_weight: ClassWeights = 1.0
    """How much more a label that is there weighs in the loss, one number for all or one for each; finite, 0 or more."""

    metrics: tuple[Metric, ...] = (SubsetAccuracy(), ElementAccuracy(), F1())
    """What evaluation reports."""

    train_metrics: tuple[Metric, ...] = (ElementAccuracy(),)
    """What the train lines report: means over entries."""

    def __init__(self, num_labels: int | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if num_labels is None else {"num_labels": num_labels}
        super().__init__(**given, **values)

    def loss(self, outputs: Any, target: Any, **words: Any) -> dict[str, Term]:
        """The loss of a batch, as `terms` gives it; for a `loss` hook of one's own."""
        return self.terms(outputs, target, **words)

    def terms(
        self, outputs: Any, target: Any, *, mask: Any = None, weight: Any = None, valid: Any = None
    ) -> dict[str, Term]:
        """Binary cross-entropy, `max(z, 0) - z y + log1p(exp(-|z|))`; arguments as of `SupervisedTask.terms`.

        With `pos_weight` p it is PyTorch's: `(1 - y) z + (1 + (p - 1) y) (log1p(exp(-|z|)) + max(-z, 0))`.
        """
        import jax.numpy as jnp

        logits, wanted, counts = columns_of(self._output(outputs), target, mask, valid)
        logits = jnp.where(counts, logits, 0)
        more = 1 + (jnp.asarray(self.pos_weight, logits.dtype) - 1) * wanted
        each = (1 - wanted) * logits + more * (jnp.log1p(jnp.exp(-abs(logits))) + jnp.maximum(-logits, 0))
        return {"binary_cross_entropy": weighed(each, counts, weight)}

    def entries(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> JudgedEntries:
        """The entries of a batch as metrics take them; arguments as of `SupervisedTask.terms`."""
        logits, wanted, counts = columns_of(self._output(outputs), target, mask, valid)
        shares = _sigmoid(logits)
        return JudgedEntries(wanted, counts, logits, (shares >= self.threshold).astype(np.int32), shares)

    def problem(self, outputs: Any, target: Any, counts: Any) -> BatchProblem | None:
        """What is wrong with the targets of a batch; arguments as of `SupervisedTask.problem`."""
        weights = np.shape(self.pos_weight)
        sizes: dict[str, int | None] = {"num_labels": self.num_labels, "labels": self._names}
        sizes["pos_weight"] = weights[0] if len(weights) == 1 else None
        return column_problem(outputs, target, counts, "labels", sizes, within=(0.0, 1.0))

    def decode(self, outputs: Any) -> Any:
        """1 where the probability reaches the threshold, else 0: i32 in the shape of the outputs."""
        return (self.probabilities(outputs) >= self.threshold).astype(np.int32)

    def probabilities(self, outputs: Any) -> Any:
        """The sigmoid of each output, in float32 at least."""
        return _sigmoid(widened(self._output(outputs)))


def _sigmoid(logits: Any) -> Any:
    xp = library_of(logits)
    small = xp.exp(-abs(logits))
    return xp.where(logits >= 0, 1, small) / (1 + small)
