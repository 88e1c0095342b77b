"""What is known about the work in progress: filled by the run, a few attribute writes per step, read by a display."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Clock", "ProgressState", "duration", "scalars_text"]

Clock = Callable[[], float]

_RATE_WINDOW = 5.0
_ETA_AFTER = 1.0


class ProgressState:
    """Position, speed and newest numbers of a run.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.label = ""
        self.total = 0
        self.done = 0
        self.epoch = 0
        self.max_epochs = 0
        self.values: Mapping[str, Any] | None = None
        self.results: dict[str, Mapping[str, Any]] = {}
        self.phase: str | None = None
        self.phase_since = 0.0
        self.note: str | None = None
        self.stretch_since: float | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._origin: tuple[float, float] | None = None

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts."""
        self.label, self.total, self.done = label, total, 0
        self.epoch, self.max_epochs = epoch, max_epochs
        self.values = None
        self.stretch_since = self.clock()
        self._samples.clear()

    def end(self, values: Mapping[str, Any] | None) -> None:
        """A stretch is over."""
        if values is not None:
            self.results[self.label] = values
        self.stretch_since = None
        self.values = None

    def set_phase(self, name: str | None) -> None:
        """Work without units starts, or is over."""
        self.phase = name
        self.phase_since = self.clock()

    @property
    def in_epochs(self) -> bool:
        """Whether the stretch belongs to a run of several epochs, rather than being one pass by itself."""
        return self.epoch > 0 and self.max_epochs > 0

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress; a run of several epochs is until it is done."""
        return not self.in_epochs and self.stretch_since is None and self.phase is None

    def fraction(self) -> float | None:
        """How much of the run is done, 0 to 1; of the stretch outside a run; None when unknown."""
        within = self.done / self.total if self.total else None
        if not self.in_epochs:
            return within
        if self.label != "train":
            within = 1.0
        return min(1.0, (self.epoch - 1 + (within or 0.0)) / self.max_epochs)

    def sample(self, now: float) -> None:
        """Remember the position at `now`, for speed and remaining time; called by the display, not by the run."""
        if self.stretch_since is None:
            return
        done = self.done
        if done and self._origin is None:
            self._origin = (now, self.fraction() or 0.0)
        samples = self._samples
        if not samples or samples[-1][1] > done:
            samples.clear()
        samples.append((now, done))
        while len(samples) > 2 and now - samples[0][0] > _RATE_WINDOW:
            samples.popleft()

    def rate(self) -> float | None:
        """Units per second over the last few seconds; None before there is a measurement."""
        if len(self._samples) < 2:
            return None
        (t0, n0), (t1, n1) = self._samples[0], self._samples[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 and n1 > n0 else None

    def remaining(self, now: float) -> float | None:
        """Seconds until the run ends at the speed so far; None before there is a measurement."""
        fraction = self.fraction()
        if self._origin is None or fraction is None:
            return None
        since, start = self._origin
        if fraction <= start or now - since < _ETA_AFTER:
            return None
        return (now - since) * (1.0 - fraction) / (fraction - start)

    def position_text(self) -> str:
        """`epoch 3/40 train`, or the stretch by itself."""
        if self.in_epochs:
            return f"epoch {self.epoch}/{self.max_epochs} {self.label}"
        return self.label or "starting"

    def numbers_text(self) -> str:
        """The newest numbers: of the steps, then of the last results."""
        parts = []
        newest = self.values or self.results.get("train")
        if newest:
            parts.append(scalars_text(newest.items()))
        for label, values in list(self.results.items()):
            text = scalars_text(values.items()) if label != "train" else ""
            if text:
                parts.append(f"{label}: {text}")
        return "   ".join(parts)


def duration(seconds: float) -> str:
    """`8.3 s`, `4:12` or `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def scalars_text(items: Iterable[tuple[str, Any]]) -> str:
    """The numbers among `items` as `loss 0.0416  acc 0.981`."""
    shown = []
    for name, value in list(items):
        if isinstance(value, bool):
            continue
        if not isinstance(value, int | float):
            if getattr(value, "ndim", None) != 0:
                continue
            value = value.item()
        shown.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(shown)
