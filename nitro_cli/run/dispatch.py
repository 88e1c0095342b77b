"""How many steps one call of the training program takes, and what is remembered of a call until it is read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.run.position import Position

__all__ = ["Burst", "Pending"]

SECONDS = 0.02
"""What one call should take at most: a stop is served, and progress shown, at its end."""


@dataclass
class Pending:
    """Dispatched steps whose numbers were not read yet, with what they were called with.

    Attributes:
        batches: the micro-batches; empty with resident data.
        before: where the run stood before the first of them.
        count: how many steps.
        readback: f32[R] of a single step, or f32[MOST_STEPS, R].
        outputs: the micro-batches' outputs, stacked, where the host computes train metrics.
        hosts: the micro-batches on the host, there too.
    """

    batches: tuple[Any, ...]
    before: Position
    count: int
    readback: Any
    outputs: Any
    hosts: tuple[Mapping[str, np.ndarray], ...]

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
        self._read: float | None = None

    def pause(self) -> None:
        """Something else than steps takes time now."""
        self._read = None

    def finished(self, count: int) -> None:
        """`count` steps of one call were read."""
        now = time.perf_counter()
        if self._read is not None:
            fitting = int(SECONDS * count / max(now - self._read, 1e-9))
            self._size = max(1, min(fitting, 2 * self._size))
        self._read = now

    @property
    def size(self) -> int:
        """Steps for the next call."""
        return min(self._size, self.most)
