"""What a contestant tells while it trains: where its epochs begin and end, and when its first step is through."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Epoch", "Watch"]


@dataclass(frozen=True)
class Epoch:
    """One epoch: wall and CPU seconds (all threads), and the mean training loss as the contestant knows it."""

    wall: float
    cpu: float
    loss: float


class Watch:
    """Takes the times of one run.

    Attributes:
        epochs: those that are over.
        wants_first: whether `first` is to be called. A contestant that would have to read the first loss out of turn
            does so only then.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self.epochs: list[Epoch] = []
        self.wants_first = on_first is not None
        self._on_first = on_first
        self._start = (0.0, 0.0)

    def begin(self) -> None:
        """An epoch begins, before its order is drawn."""
        self._start = (time.perf_counter(), time.process_time())

    def end(self, loss: float) -> None:
        """Its last loss is on the host."""
        wall, cpu = self._start
        self.epochs.append(Epoch(time.perf_counter() - wall, time.process_time() - cpu, loss))

    def first(self) -> None:
        """The first step's loss is on the host."""
        if self._on_first is not None:
            told, self._on_first = self._on_first, None
            told()
