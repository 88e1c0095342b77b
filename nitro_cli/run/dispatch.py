"""How many steps one call of the training program takes, and what is remembered of a call until it is read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.run.position import Position

__all__ = ["Burst", "Pending"]

SECONDS = 0.01
"""What one call should take at most: a stop is served, and progress shown, at its end."""

MEASURED_SECONDS = 2e-4
"""How long steps are counted before their time is believed: several calls may be read at once."""


@dataclass(slots=True)
class Pending:
    """Dispatched steps whose numbers were not read yet, with what they were called with.

    Attributes:
        batches: the micro-batches, or the window that they are in; empty with resident data.
        before: where the run stood before the first of them.
        count: how many steps.
        readback: f32[R] of a single step, or f32[MOST_STEPS, R].
        outputs: the micro-batches' outputs, stacked, where the host computes train metrics.
        hosts: the micro-batches on the host, there too.
        states: of the train source after each micro-batch, where it has one.
    """

    batches: Any
    before: Position
    count: int
    readback: Any
    outputs: Any = None
    hosts: tuple[Mapping[str, np.ndarray], ...] = ()
    states: tuple[Any, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether its numbers are computed."""
        return bool(self.readback.is_ready())

    def rows(self) -> np.ndarray:
        """The numbers of each step, f32[count, R]; waits until they are computed."""
        numbers = np.asarray(self.readback)
        return numbers[None] if numbers.ndim == 1 else numbers[: self.count]


class Burst:
    """Steps per call, grown from one until a call takes about `SECONDS`.

    Grouping changes no result, so it may follow the clock.

    Args:
        most: the most steps a call can take.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = 1
        self._since: float | None = None
        self._count = 0
        self._step_seconds = 0.0

    def pause(self) -> None:
        """Something else than steps takes time now."""
        self._since, self._count = None, 0

    def finished(self, count: int) -> None:
        """`count` steps of one call were read."""
        now = time.perf_counter()
        if self._since is None:
            self._since = now
            return
        self._count += count
        if now - self._since < MEASURED_SECONDS:
            return
        found = (now - self._since) / self._count
        self._step_seconds = (self._step_seconds + found) / 2 if self._step_seconds else found
        self._since, self._count = now, 0
        self._size = max(1, min(int(SECONDS / self._step_seconds), 2 * self._size))

    @property
    def size(self) -> int:
        """Steps for the next call."""
        return min(self._size, self.most)
