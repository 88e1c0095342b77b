"""Values as they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from nitro_cli.experiment import BatchProblem, Device, Term
from nitro_cli.metrics import Mae, Metric, Mse
from nitro_cli.tasks.batch_values import column_problem
from nitro_cli.tasks.columns import columns_of, weighed
from nitro_cli.tasks.entries import JudgedEntries
from nitro_cli.tasks.supervised import SupervisedTask
from nitro_cli.tasks.task import register_task

__all__ = ["Regression"]


@register_task("regression")
class Regression(SupervisedTask):
    """Values (N, T) and targets alike, NaN where there is none; (N,) stands for (N, 1) in either.

    Its term is `squared_error`, `absolute_error` or `huber`, the mean over the entries that count.

    Args:
        num_targets: how many values per sample; None takes them from the outputs.
    """

    prediction_kind = "continuous"
    width_field = "num_targets"

    num_targets: Annotated[int, Field(ge=1)] | None = None
    """How many values per sample; None takes them from the outputs."""

    loss: Literal["squared", "absolute", "huber"] = "squared"
    """What is added up of the residuals r: r^2, |r|, or Huber's r^2 / 2 up to `delta` and delta (|r| - delta / 2)
    beyond."""

    delta: Annotated[Device[float], Field(gt=0, allow_inf_nan=False)] = 1.0
    """Where Huber's loss turns from squares to sizes."""

    metrics: tuple[Metric, ...] = (Mse(), Mae())
    """What evaluation reports."""

    train_metrics: tuple[Metric, ...] = (Mse(),)
    """What the train lines report: means over entries."""

    def __init__(self, num_targets: int | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if num_targets is None else {"num_targets": num_targets}
        super().__init__(**given, **values)

    def terms(
        self, outputs: Any, target: Any, *, mask: Any = None, weight: Any = None, valid: Any = None
    ) -> dict[str, Term]:
        """The error that `loss` names; arguments as of `SupervisedTask.terms`."""
        import jax.numpy as jnp

        values, wanted, counts = columns_of(self._output(outputs), target, mask, valid)
        residual = jnp.where(counts, values, 0) - wanted
        size = abs(residual)
        if self.loss == "squared":
            return {"squared_error": weighed(residual**2, counts, weight)}
        if self.loss == "absolute":
            return {"absolute_error": weighed(size, counts, weight)}
        delta = jnp.asarray(self.delta, residual.dtype)
        near = jnp.minimum(size, delta)
        return {"huber": weighed(near * (size - near / 2), counts, weight)}

    def entries(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> JudgedEntries:
        """The entries of a batch as metrics take them; arguments as of `SupervisedTask.terms`."""
        values, wanted, counts = columns_of(self._output(outputs), target, mask, valid)
        return JudgedEntries(wanted, counts, values, values)

    def problem(self, outputs: Any, target: Any, counts: Any) -> BatchProblem | None:
        """What is wrong with the targets of a batch; arguments as of `SupervisedTask.problem`."""
        sizes = {"num_targets": self.num_targets, "labels": self._names}
        return column_problem(outputs, target, counts, "targets", sizes)

    def decode(self, outputs: Any) -> Any:
        """The values themselves."""
        return self._output(outputs)

    def probabilities(self, outputs: Any) -> None:
        """None: values have no probabilities."""
        return None
