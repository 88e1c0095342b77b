"""A progress reporter that only takes times."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["EpochClock"]


class EpochClock:
    """Wall and CPU seconds of each training stretch.

    Attributes:
        train: `(wall, cpu)` per epoch.
        first_step: wall clock at the end of the first training step, or None.
    """

    def __init__(self) -> None:
        self.train: list[tuple[float, float]] = []
        self.first_step: float | None = None
        self._label = ""
        self._start = (0.0, 0.0)

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts."""
        self._label, self._start = label, (time.perf_counter(), time.process_time())

    def end(self, values: Any) -> None:
        """It is over."""
        if self._label == "train":
            wall, cpu = self._start
            self.train.append((time.perf_counter() - wall, time.process_time() - cpu))
        self._label = ""

    def step(self, n: int, values: Any) -> None:
        """A unit is finished."""
        if self.first_step is None:
            self.first_step = time.perf_counter()

    def phase(self, name: str | None) -> None:
        """Nothing to draw."""

    def note(self, text: str | None) -> None:
        """Nothing to draw."""

    def line(self, text: str) -> None:
        """Nothing to draw."""

    def done(self, text: str) -> None:
        """Nothing to draw."""
