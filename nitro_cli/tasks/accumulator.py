"""Metrics of a task over batches, outside of a run."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nitro_cli.errors import ConfigError, DataError
from nitro_cli.experiment import BatchProblem, content_digest
from nitro_cli.metrics import SplitAccumulator, Undefined

__all__ = ["TaskAccumulator"]


class Accumulated(Protocol):
    """What is needed of a task: a check and the sums of a batch, and values of their totals."""

    def check(self, outputs: Any, target: Any, *, mask: Any = None) -> BatchProblem | None:
        """What is wrong with a batch."""
        ...

    def sums(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> dict[str, Any]:
        """The sums of a batch."""
        ...

    def values(self, combined: dict[str, Any]) -> dict[str, Any]:
        """The metrics of the totals."""
        ...


class TaskAccumulator:
    """Metrics of a task over batches; made by `task.accumulator()`.

    Args:
        task: what the outputs mean, and the metrics.

    Attributes:
        reasons: why, by the name of each metric that the last `result` had no value of.
    """

    def __init__(self, task: Accumulated) -> None:
        self._task = task
        self._sums = SplitAccumulator("metrics")
        self.reasons: dict[str, str] = {}

    def update(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> None:
        """Add a batch.

        Args:
            outputs: what `forward` returned; NumPy's arrays are summed in float64, JAX's on their device.
            target: the targets.
            mask: bool[N] or one per entry; what counts.
            valid: bool[N], False on padding.

        Raises:
            DataError: mask, shapes, targets or metrics do not fit, as training would say; nothing is added.
        """
        told = None if mask is None else np.asarray(mask)
        wanted = np.asarray(target)
        problem = self._task.check(outputs, wanted, mask=_shown(told, wanted, valid))
        if problem is not None:
            place = None if problem.row is None else f"row {problem.row} of the batch"
            raise DataError(problem.what, where=place, why=problem.why, fix=problem.fix)
        self._sums.add(self._task.sums(outputs, target, mask=mask, valid=valid))

    def merge(self, other: TaskAccumulator) -> None:
        """Add what another one has; it stays as it is.

        Raises:
            ConfigError: it is of another task, or of other metrics.
        """
        if self._declared() != other._declared():
            raise ConfigError(
                "accumulators of different declarations cannot be merged",
                why=f"{self._task!r} and {other._task!r}",
                fix="make both by `accumulator()` of one task",
            )
        self._sums.merge(other._sums)

    def result(self) -> dict[str, Any]:
        """`count` and every metric of the batches so far; None where one is undefined, as `reasons` says.

        Raises:
            MetricError: no batch was added.
        """
        values = self._task.values(self._sums.result())
        self.reasons = {name: value.reason for name, value in values.items() if isinstance(value, Undefined)}
        return {name: None if name in self.reasons else value for name, value in values.items()}

    def _declared(self) -> str:
        return content_digest(self._task)


def _shown(mask: np.ndarray | None, target: np.ndarray, valid: Any) -> np.ndarray | None:
    """What is looked at: what the mask lets through and is no padding."""
    if valid is None:
        return mask
    real = np.asarray(valid).astype(bool)
    if mask is None or mask.dtype != bool or mask.shape != target.shape[: mask.ndim] or real.shape != mask.shape[:1]:
        return real if mask is None else mask
    return mask & real.reshape(real.shape + (1,) * (mask.ndim - 1))
