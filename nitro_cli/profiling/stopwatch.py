"""Where the seconds of one thread go, each counted once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["REST", "Spent", "Stopwatch"]

REST = "other"
"""The name of the seconds that no stretch claims."""


@dataclass(frozen=True)
class Spent:
    """Seconds by name, and how often each name was entered."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: Counter[str] = field(default_factory=Counter)

    def since(self, before: Spent) -> Spent:
        """What was added after `before` was read."""
        differences = {name: value - before.seconds[name] for name, value in self.seconds.items()}
        seconds = defaultdict(float, differences)
        times = Counter({name: value - before.times[name] for name, value in self.times.items()})
        return Spent(seconds, times)


class Stopwatch:
    """Splits the time of one thread between named stretches; one inside another takes its seconds from the outer."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._times: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        """A stretch begins."""
        self._charge()
        self._open.append(name)
        self._times[name] += 1

    def leave(self) -> None:
        """The innermost stretch is over."""
        self._charge()
        self._open.pop()

    def move(self, seconds: float, times: int, out_of: str, into: str) -> None:
        """Count seconds that were measured otherwise under another name than the stretch that they fell in."""
        self._seconds[out_of] -= seconds
        self._seconds[into] += seconds
        self._times[into] += times

    @contextlib.contextmanager
    def spent(self, name: str) -> Iterator[None]:
        """Count what happens inside under `name`."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def read(self) -> Spent:
        """Everything up to now."""
        self._charge()
        return Spent(self._seconds.copy(), self._times.copy())

    def _charge(self) -> None:
        now = time.perf_counter()
        self._seconds[self._open[-1] if self._open else REST] += now - self._since
        self._since = now
