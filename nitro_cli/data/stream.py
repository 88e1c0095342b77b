"""The batches of one pass, delivered to the loop one by one or in windows: ahead of it by threads, or inline."""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from nitro_cli.data.batches import BatchCheck
from nitro_cli.data.ownership import BatchCopies
from nitro_cli.data.sources import Reader
from nitro_cli.data.windows import END, Feed, WindowPlan, gathered, gathered_at_once
from nitro_cli.errors import DataError, NitroError

__all__ = ["BatchStream", "InlineStream", "StreamItem", "StreamPlan", "WaitEnded"]

Prepare = Callable[[int, Any], Any]

GATHER_SECONDS: float = 0.01
"""How long a window may be gathered in the consumer's own thread before its steps are taken."""

_NOTHING: Final = object()


class WaitEnded(BaseException):
    """A hurried consumer waited for a batch in vain. No `Exception`, so that a source that tries again lets it pass."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamItem:
    """One delivered batch.

    Args:
        index: batch index from 0.
        host: the batch as the source built it.
        device: what `prepare` returned for it; None without `prepare`.
        state: the source's own iterator state after this batch, where it has one.
    """

    index: int
    host: Mapping[str, Any]
    device: Any
    state: Any = None


@dataclass(frozen=True)
class StreamPlan:
    """Everything one pass needs to know.

    Args:
        split: name of the split.
        reader: how the source is read.
        epoch: epoch from 1; 0 in evaluation.
        seed: seed of the run.
        start: first batch to deliver.
        state: iterator state to continue from, where the source has one.
        check: check of each batch.
        prepare: what the transfer stage does with each batch.
        windows: how batches are gathered; None where they are delivered one by one.
    """

    split: str
    reader: Reader
    epoch: int
    seed: int
    start: int
    state: Any
    check: BatchCheck
    prepare: Prepare | None
    windows: WindowPlan | None = None

    @property
    def stop(self) -> int:
        """Number of batches of the whole epoch."""
        return self.reader.batches


class BatchStream(ABC):
    """The batches of one pass, in order of delivery: an iterator and a context manager.

    Attributes:
        wait_seconds: seconds for which the consumer waited for a batch so far.
    """

    wait_seconds: float = 0.0

    @property
    @abstractmethod
    def built(self) -> tuple[int, float]:
        """How many batches were built so far, and for how many seconds, of all threads together."""

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """Return the next batch, a `StreamItem`; or, where they are gathered, a `WindowItem`.

        Raises:
            DataError: a batch breaks a promise of its split.
            Exception: what the source or `prepare` raised, with its own traceback.
        """

    @abstractmethod
    def want(self, batches: int) -> None:
        """Say how many batches a window should have at most, from now on."""

    @abstractmethod
    def hurry(self, patience: float) -> None:
        """Let the consumer wait at most so many seconds for each batch from now on; then `WaitEnded` is raised.

        It may be called by a signal handler and by another thread.
        """

    @abstractmethod
    def close(self) -> None:
        """End the pass: no thread, no batch and no iterator stays. Closing again does nothing."""


class InlineStream(BatchStream):
    """Batches built and prepared in the consumer's own thread.

    Args:
        plan: what the pass needs to know.
    """

    def __init__(self, plan: StreamPlan) -> None:
        self._feed = _InlineFeed(plan)
        self._wanted = 1
        self._built = 0
        self._items: Any
        fill = _fill_of(plan)
        if fill is not None and plan.windows is not None:
            self._items = gathered_at_once(plan.windows, fill, range(plan.start, plan.stop), lambda: self._wanted)
        else:
            self._items = items_of(plan, self._feed, lambda: self._wanted)

    @property
    def built(self) -> tuple[int, float]:
        return self._built, self.wait_seconds

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            item = next(self._items)
            self._built += getattr(item, "count", 1)
            return item
        finally:
            self.wait_seconds += time.perf_counter() - began

    def want(self, batches: int) -> None:
        self._wanted = batches

    def hurry(self, patience: float) -> None:
        # The source's code runs in the consumer's thread: a signal handler can only leave it at once, or not at all.
        if patience <= 0 and self._feed.reader == threading.get_ident():
            raise WaitEnded

    def close(self) -> None:
        self._items.close()
        self._feed.close()


class _InlineFeed:
    """A pass read by the one who asks; ready is what can be built in `GATHER_SECONDS`."""

    def __init__(self, plan: StreamPlan) -> None:
        # What goes into a window is copied there.
        self._batches = read_in_order(plan, lambda index: True, owned=plan.windows is None)
        self._until = 0.0
        self.reader: int | None = None

    def take(self, wait: bool) -> Any:
        if not wait and time.perf_counter() >= self._until:
            return None
        try:
            self.reader = threading.get_ident()
            return next(self._batches, END)
        finally:
            self.reader = None

    def taken(self) -> None: ...

    def room(self) -> bool:
        self._until = time.perf_counter() + GATHER_SECONDS
        return True

    def close(self) -> None:
        self._batches.close()


def _fill_of(plan: StreamPlan) -> Callable[[Mapping[str, Any], int, int], None] | None:
    """How the source fills a whole window by itself, if it can: not where batches are narrowed or looked at."""
    if plan.windows is None or plan.reader.open_filling is None or plan.check.own is not None:
        return None
    held = plan.check.fields
    if any(held[name].dtype != spec.dtype for name, spec in plan.windows.fields.items()):
        return None
    return plan.reader.open_filling(plan.epoch, plan.seed)


def items_of(plan: StreamPlan, feed: Feed, wanted: Callable[[], int]) -> Iterator[Any]:
    """What a pass delivers, prepared.

    Args:
        plan: what the pass needs to know.
        feed: its batches.
        wanted: asked how many batches a window should have at most.
    """
    if plan.windows is not None:
        return gathered(plan.windows, feed, wanted, lambda i, batch, state: _item(plan, i, batch, state))
    return _one_by_one(plan, feed)


def _one_by_one(plan: StreamPlan, feed: Feed) -> Iterator[StreamItem]:
    got: Any
    while (got := feed.take(True)) is not END:
        if not feed.room():
            return
        item = _item(plan, *got)
        # The names would keep the batch alive while the next one is awaited.
        got = None
        feed.taken()
        yield item
        del item


def _item(plan: StreamPlan, index: int, batch: Any, state: Any) -> StreamItem:
    return StreamItem(index, batch, prepared(plan, index, batch), state)


def read_in_order(plan: StreamPlan, go_on: Callable[[int], bool], *, owned: bool = True) -> Any:
    """Yield (index, checked batch, iterator state) of a pass, one after the other.

    Args:
        plan: what the pass needs to know.
        go_on: asked with its index before each batch is built, and once after the last; False ends the pass.
        owned: whether a batch is kept beyond the next one, so that it must not lie in memory of the source.

    Raises:
        DataError: the source has fewer or more batches than its length, or a batch breaks a promise.
    """
    own = BatchCopies() if owned and not plan.reader.fresh else _as_it_is
    if plan.reader.open_indexed is not None:
        read = open_indexed(plan, own)
        for index in range(plan.start, plan.stop):
            if not go_on(index):
                return
            yield index, read(index), None
        return
    assert plan.reader.open_ordered is not None
    iterator, position = plan.reader.open_ordered(plan.epoch, plan.seed, plan.start, plan.state)
    try:
        yield from _read_iterator(plan, iterator, position, go_on, own)
    finally:
        close_iterator(iterator)


def _read_iterator(
    plan: StreamPlan, iterator: Iterator[Any], position: int, go_on: Callable[[int], bool], own: Callable[[Any], Any]
) -> Any:
    state_of = getattr(iterator, "state", None)
    for index in range(position, plan.stop):
        if not go_on(index):
            return
        try:
            batch = next(iterator)
        except StopIteration:
            raise _too_few(plan, index) from None
        except Exception as error:
            raise noted(error, plan, index)  # noqa: B904 - the same error, with a note
        if index < plan.start:
            del batch
            continue
        plan.check(index, batch)
        # The source goes on with its arrays, and its iterator with its state, while these wait.
        batch = own(batch)
        yield index, batch, copy.deepcopy(state_of()) if callable(state_of) else None
        del batch
    if go_on(plan.stop) and next(iterator, _NOTHING) is not _NOTHING:
        raise DataError(
            f"the source yields more than its {plan.stop} batches in epoch {plan.epoch}",
            where=f"split `{plan.split}`, batch {plan.stop}",
            why="len(source) fixed the steps of an epoch at setup; the batches beyond would never be used",
            fix="let __len__ count the batches that __iter__ yields",
        )


def open_indexed(plan: StreamPlan, own: Callable[[Any], Any] | None = None) -> Callable[[int], Any]:
    """Return a thread-safe function from batch index to batch, for the epoch of a pass over an indexed source.

    Args:
        plan: what the pass needs to know.
        own: applied to each batch; None copies what the source may write again.
    """
    assert plan.reader.open_indexed is not None
    read = plan.reader.open_indexed(plan.epoch, plan.seed)
    if own is None:
        own = _as_it_is if plan.reader.fresh else BatchCopies()
    return lambda index: own(_read_checked(plan, read, index))


def _as_it_is(batch: Any) -> Any:
    return batch


def _read_checked(plan: StreamPlan, read: Callable[[int], Any], index: int) -> Any:
    """Return one batch of an index-addressable source, checked.

    Raises:
        DataError: the batch breaks a promise.
        Exception: what the source raised.
    """
    try:
        batch = read(index)
    except StopIteration as error:
        # Raised from __next__ as it is, it would end the epoch silently.
        raise DataError(
            "batch_at raised StopIteration",
            where=f"split `{plan.split}`, batch {index}",
            why=f"every index below len(source), {plan.stop}, is a batch",
            fix="return a batch for each index, and count only those in len",
        ) from error
    except Exception as error:
        raise noted(error, plan, index)  # noqa: B904 - the same error, with a note
    plan.check(index, batch)
    return batch


def prepared(plan: StreamPlan, index: int, batch: Any) -> Any:
    """Return what `prepare` makes of a batch; None without one."""
    if plan.prepare is None:
        return None
    try:
        return plan.prepare(index, batch)
    except StopIteration as error:
        raise DataError(
            "the transfer of a batch raised StopIteration", where=f"split `{plan.split}`, batch {index}"
        ) from error


def noted(error: Exception, plan: StreamPlan, index: int) -> Exception:
    """Return the error with a note of where in the data it happened."""
    if not isinstance(error, NitroError):
        error.add_note(f"raised by the data source of split `{plan.split}`, batch {index}, epoch {plan.epoch}")
    return error


def close_iterator(iterator: Any) -> None:
    """Close an iterator that can be closed, such as a generator, so that its files are closed too."""
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def _too_few(plan: StreamPlan, index: int) -> DataError:
    if index == 0:
        return DataError(
            f"epoch {plan.epoch} is empty: the source yields no batch, its length says {plan.stop}",
            where=f"split `{plan.split}`, batch 0",
            why="a source that is exhausted by its first pass cannot serve another epoch",
            fix="let __iter__ start over each time it is called",
        )
    return DataError(
        f"the source ends after {index} batches in epoch {plan.epoch}, its length says {plan.stop}",
        where=f"split `{plan.split}`, batch {index}",
        why="len(source) fixed the steps of an epoch, and with them the schedules, at setup",
        fix="let __len__ count the batches that __iter__ yields",
    )
