"""The batches of one pass, delivered to the loop: ahead of it by threads, or inline."""

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
from nitro_cli.errors import DataError, NitroError

__all__ = ["BatchStream", "InlineStream", "StreamItem", "StreamPlan", "WaitEnded"]

Prepare = Callable[[int, Any], Any]

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
    """

    split: str
    reader: Reader
    epoch: int
    seed: int
    start: int
    state: Any
    check: BatchCheck
    prepare: Prepare | None

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

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[StreamItem]:
        return self

    @abstractmethod
    def __next__(self) -> StreamItem:
        """Return the next batch.

        Raises:
            DataError: a batch breaks a promise of its split.
            Exception: what the source or `prepare` raised, with its own traceback.
        """

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
        self._batches = read_in_order(plan, lambda index: True)
        self._plan = plan
        self._reader: int | None = None

    def __next__(self) -> StreamItem:
        began = time.perf_counter()
        try:
            self._reader = threading.get_ident()
            try:
                index, batch, state = next(self._batches)
            finally:
                self._reader = None
            return StreamItem(index, batch, prepared(self._plan, index, batch), state)
        finally:
            self.wait_seconds += time.perf_counter() - began

    def hurry(self, patience: float) -> None:
        # The source's code runs in the consumer's thread: a signal handler can only leave it at once, or not at all.
        if patience <= 0 and self._reader == threading.get_ident():
            raise WaitEnded

    def close(self) -> None:
        self._batches.close()


def read_in_order(plan: StreamPlan, go_on: Callable[[int], bool]) -> Any:
    """Yield (index, checked batch, iterator state) of a pass, one after the other.

    Args:
        plan: what the pass needs to know.
        go_on: asked with its index before each batch is built, and once after the last; False ends the pass.

    Raises:
        DataError: the source has fewer or more batches than its length, or a batch breaks a promise.
    """
    if plan.reader.open_indexed is not None:
        read = open_indexed(plan)
        for index in range(plan.start, plan.stop):
            if not go_on(index):
                return
            yield index, read(index), None
        return
    assert plan.reader.open_ordered is not None
    iterator, position = plan.reader.open_ordered(plan.epoch, plan.seed, plan.start, plan.state)
    try:
        yield from _read_iterator(plan, iterator, position, go_on)
    finally:
        close_iterator(iterator)


def _read_iterator(plan: StreamPlan, iterator: Iterator[Any], position: int, go_on: Callable[[int], bool]) -> Any:
    state_of = getattr(iterator, "state", None)
    own = _as_it_is if plan.reader.fresh else BatchCopies()
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


def open_indexed(plan: StreamPlan) -> Callable[[int], Any]:
    """Return a thread-safe function from batch index to batch, for the epoch of a pass over an indexed source."""
    assert plan.reader.open_indexed is not None
    read = plan.reader.open_indexed(plan.epoch, plan.seed)
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
