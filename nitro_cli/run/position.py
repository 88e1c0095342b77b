"""How far a run is: step, epoch, batch, and what the epoch in progress has summed up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nitro_cli.programs import Outcome, Pair, ReadbackLayout
from nitro_cli.run.epoch_totals import EpochTotals

__all__ = ["Position"]


class Position(NamedTuple):
    """How far a run is, on the host.

    Attributes:
        step: optimizer steps, those that were not taken among them.
        epoch: the epoch in progress or just ended; 0 before the first.
        batch: micro-batches taken of it.
        closed: whether that epoch was validated and recorded.
        totals: what the epoch has summed up so far.
        updates: optimizer steps that were taken.
        failed: steps in a row, up to here, that were not finite.
        stream_state: of the train source after the last batch taken, where it has one.
        steps_per_dispatch: the most steps of one call; None before the first.
        weights_step: the step that loaded weights are of, which scheduled Device fields are read at; None where that is
            `step`.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    closed: bool = True
    totals: EpochTotals = EpochTotals()
    updates: int = 0
    failed: int = 0
    stream_state: Any = None
    steps_per_dispatch: int | None = None
    weights_step: int | None = None

    def stepped(self, steps: int, batches: int, stream_state: Any, steps_per_dispatch: int) -> Position:
        """After `steps` optimizer steps over `batches` micro-batches, before their numbers are known."""
        # Spelled out, since this is done at every step and `_replace` is slow.
        return Position(
            self.step + steps,
            self.epoch,
            self.batch + batches,
            self.closed,
            self.totals,
            self.updates,
            self.failed,
            stream_state,
            steps_per_dispatch,
            self.weights_step,
        )

    def read(self, layout: ReadbackLayout, rows: np.ndarray, host: Mapping[str, Pair]) -> tuple[Position, int]:
        """The same, with the numbers of dispatched steps, and how many of these count: all before one that diverged.

        Args:
            layout: of the readback.
            rows: f32[steps, R].
            host: train metrics that were computed on the host, of the one step.
        """
        totals, updates, failed = self.totals, self.updates, self.failed
        count = 0
        for row in rows.tolist():
            outcome = row[layout.OUTCOME]
            if outcome == Outcome.DIVERGED:
                break
            count += 1
            if outcome == Outcome.TAKEN:
                terms, metrics = layout.totals(row)
                totals = totals.taken(row[0], terms, {**metrics, **host} if host else metrics)
                updates, failed = updates + 1, 0
            else:
                totals, failed = totals.left_out(), failed + (outcome == Outcome.NONFINITE)
        return Position(*self[:4], totals, updates, failed, *self[7:]), count

    @property
    def read_step(self) -> int:
        """The step at which schedules are read for the weights in hand."""
        return self.step if self.weights_step is None else self.weights_step
