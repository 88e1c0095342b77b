"""Whether threads of their own build the batches of the train split, where the device is the host itself."""

from __future__ import annotations

import time

from nitro_cli.data import BatchStream, Split

__all__ = ["Producing"]

FIRST_SECONDS = 0.25
"""How long steps are watched before the first decision inside an epoch; each watch is twice as long as the last."""

LEAST_BATCHES = 8
"""Batches that a decision is made of, at least."""


class Producing:
    """Follows what building the batches costs beside the steps.

    The loop builds a batch while the device is at the step before, so threads pay only where that takes more than half
    of the time; below, they take theirs from the device. No result depends on it.

    Args:
        split: of the training data.
        on_host: whether the device is the host.

    Attributes:
        threads: whether the next pass has them; None for what the split begins with.
    """

    def __init__(self, split: Split, on_host: bool) -> None:
        self.threads: bool | None = None
        self._open = on_host and split.prefetch.follows
        self._enters = split.enters_anywhere
        self._seconds = FIRST_SECONDS
        self._since: float | None = None
        self._before = (0, 0.0)

    def pause(self) -> None:
        """Something else than steps takes time now, or another pass begins."""
        self._since = None

    def stepped(self, stream: BatchStream) -> bool:
        """Steps were dispatched; True where the pass should go on with threads, which it has not so far."""
        if not self._open:
            return False
        now = time.perf_counter()
        if self._since is None:
            self._since, self._before = now, stream.built
            return False
        if now - self._since < self._seconds:
            return False
        before = self.threads
        self._decide(stream, now)
        self._seconds *= 2
        self.pause()
        return self._enters and before is not True and self.threads is True

    def ended(self, stream: BatchStream) -> None:
        """A pass is over: the next one follows what it cost."""
        if self._since is not None:
            self._decide(stream, time.perf_counter())
        self.pause()

    def _decide(self, stream: BatchStream, now: float) -> None:
        assert self._since is not None
        count, seconds = (new - old for new, old in zip(stream.built, self._before, strict=True))
        if count >= LEAST_BATCHES:
            self.threads = seconds > (now - self._since) / 2
