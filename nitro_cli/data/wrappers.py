"""How a split is prefetched, where the user wants another way than the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from nitro_cli.errors import DataError

__all__ = ["NoPrefetch", "Prefetch", "WithLength"]


@dataclass(frozen=True)
class Prefetch:
    """Prefetch settings of one split; every split has these at their defaults.

    Iterating the wrapper iterates the source itself, with no thread.

    Args:
        source: the data source.
        workers: producer threads that build host batches; None is one per core, at most 4. A
            source that only iterates has one in any case.
        device_batches: batches staged on the device ahead of the loop, at least 1. At most
            `device_batches + 2` are there at once: staged, in the loop's hands, just replaced.
        host_batches: batches built on the host and not yet on the device; None is `2 * workers`.
        ordered: whether batches arrive in the source's order. Unordered, each arrives once, as it
            is built, and a run does not repeat bitwise.
        window: the most batches that reach the device together, for steps that share a call; None leaves it to the
            time of a step and the bytes of a batch, 1 takes every step by a call of its own.

    Raises:
        DataError: a number is out of range, or the source is already wrapped.
    """

    source: Any
    workers: int | None = None
    device_batches: int = 1
    host_batches: int | None = None
    ordered: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        _refuse_nesting(self)
        for name in ("workers", "device_batches", "host_batches", "window"):
            value = getattr(self, name)
            if value is None and name != "device_batches":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise DataError(f"`{name}` is {value!r}, not a whole number", where=f"Prefetch({name}=)")
            if value < 1:
                fix = "wrap the source in NoPrefetch(source) to do without prefetch, or use at least 1"
                fix = "use window=1 to take every step by a call of its own" if name == "window" else fix
                raise DataError(f"`{name}` is {value}", where=f"Prefetch({name}=)", fix=fix)
        if self.workers is not None and self.host_batches is not None and self.host_batches < self.workers:
            raise DataError(
                f"{self.host_batches} host batches for {self.workers} workers",
                where="Prefetch(workers=, host_batches=)",
                why="each worker holds the batch that it builds, so the others would never work",
                fix=f"use host_batches={self.workers} or more, or fewer workers",
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class NoPrefetch:
    """A split without prefetch: batches are built and moved by the loop itself, in its own thread.

    Args:
        source: the data source.

    Raises:
        DataError: the source is already wrapped.
    """

    source: Any

    def __post_init__(self) -> None:
        _refuse_nesting(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class WithLength:
    """A source without `__len__`, together with its number of batches.

    Args:
        source: a restartable data source; it may be endless.
        batches: batches of an epoch; each pass ends after so many.

    Raises:
        DataError: `batches` is not a positive whole number.
    """

    source: Any
    batches: int

    def __post_init__(self) -> None:
        if isinstance(self.batches, bool) or not isinstance(self.batches, int) or self.batches < 1:
            raise DataError(f"`batches` is {self.batches!r}", where="WithLength(batches=)", fix="give 1 or more")

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.source)
        try:
            yield from islice(iterator, self.batches)
        finally:
            close = getattr(iterator, "close", None)
            if callable(close):
                close()

    def __len__(self) -> int:
        return self.batches

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a source that asks for it."""
        if callable(getattr(self.source, "set_epoch", None)):
            self.source.set_epoch(epoch)


def _refuse_nesting(wrapper: Prefetch | NoPrefetch) -> None:
    if isinstance(wrapper.source, (Prefetch, NoPrefetch)):
        outer, inner = type(wrapper).__name__, type(wrapper.source).__name__
        raise DataError(
            f"{outer} around {inner}", where=f"{outer}(source)", fix="wrap the data source once, in the one you mean"
        )
