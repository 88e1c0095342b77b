"""How far a run is: step, epoch, batch, and what the epoch in progress has summed up."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["Position"]


class Position(NamedTuple):
    """How far a run is, on the host.

    Attributes:
        step: optimizer steps taken.
        epoch: the epoch in progress or just ended; 0 before the first.
        batch: micro-batches taken of it.
        closed: whether that epoch was validated and recorded.
        loss_sum, loss_count: the losses of the epoch's steps so far, and how many.
        stream_state: of the train source after the last batch taken, where it has one.
        steps_per_dispatch: the most steps of one call; None before the first.
        weights_step: the step that loaded weights are of, which scheduled Device fields are read at; None where that is
            `step`.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    closed: bool = True
    loss_sum: float = 0.0
    loss_count: int = 0
    stream_state: Any = None
    steps_per_dispatch: int | None = None
    weights_step: int | None = None

    def stepped(self, steps: int, batches: int, stream_state: Any, steps_per_dispatch: int) -> Position:
        """After `steps` optimizer steps over `batches` micro-batches, before their losses are known."""
        # Spelled out, since this is done at every step and `_replace` is slow.
        return Position(
            self.step + steps,
            self.epoch,
            self.batch + batches,
            self.closed,
            self.loss_sum,
            self.loss_count,
            stream_state,
            steps_per_dispatch,
            self.weights_step,
        )

    def summed(self, loss_sum: float, loss_count: int) -> Position:
        """The same, its epoch's losses summed up so far."""
        return Position(*self[:4], loss_sum, loss_count, *self[6:])

    @property
    def mean_loss(self) -> float:
        """The epoch's mean training loss; NaN where no step was taken."""
        return self.loss_sum / self.loss_count if self.loss_count else math.nan

    @property
    def read_step(self) -> int:
        """The step at which schedules are read for the weights in hand."""
        return self.step if self.weights_step is None else self.weights_step
