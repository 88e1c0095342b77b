"""Batches built and moved by threads, ahead of the loop.

    workers producers  --built-->  one transfer thread  --items-->  the loop
                       <-credits-                       <-slots---

A credit allows one host batch, a slot one device batch. All four are `queue.SimpleQueue`s, whose
operations run in C: what the loop pays per batch is a few hundred nanoseconds.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from nitro_cli.data.stream import BatchStream, StreamItem, StreamPlan, prepared, read_checked, read_in_order
from nitro_cli.errors import NitroWarning

__all__ = ["PrefetchStream"]

JOIN_SECONDS: float = 5.0
"""How long closing waits for a producer that is inside the user's code."""

ORDER_SECONDS: float = 5.0
"""How long a producer's error waits for the batches before it."""


class _Failure:
    """An exception on its way to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _index_of(message: tuple[int, Any, Any]) -> int:
    return message[0]


_STOP: Final = object()
_END: Final = object()
_GO: Final = object()


class _Pipeline:
    """What the threads share. It knows no stream, so that an abandoned stream can be collected."""

    def __init__(
        self, plan: StreamPlan, *, workers: int, host_batches: int, device_batches: int, ordered: bool
    ) -> None:
        self.plan = plan
        self.ordered = ordered
        self.closed = False
        self.credits: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.built: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.slots: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(host_batches):
            self.credits.put(_GO)
        # Two more than are staged: the batch in the loop's hands and the one it just let go.
        for _ in range(device_batches + 2):
            self.slots.put(_GO)
        # `next` on a range iterator is one C call, so no two producers take the same index; a credit is
        # taken before, so the lowest index that is missing is always being built.
        self.indices = iter(range(plan.start, plan.stop))
        targets: list[Callable[[], None]]
        if plan.reader.open_indexed is None:
            targets = [self._produce_in_order]
        else:
            read = plan.reader.open_indexed(plan.epoch, plan.seed)
            targets = [lambda: self._produce_by_index(read)] * min(workers, max(plan.stop - plan.start, 1))
        names = [f"nitro-data-{plan.split}-producer-{i}" for i in range(len(targets))]
        self.threads = [threading.Thread(target=t, name=n, daemon=True) for t, n in zip(targets, names, strict=True)]
        name = f"nitro-data-{plan.split}-transfer"
        self.threads.append(threading.Thread(target=self._transfer, name=name, daemon=True))

    def signal(self) -> None:
        """Tell all threads to end; nothing waits."""
        if self.closed:
            return
        self.closed = True
        for _ in self.threads:
            self.credits.put(_STOP)
        self.slots.put(_STOP)
        self.built.put((-1, _STOP, None))

    def _produce_by_index(self, read: Callable[[int], Any]) -> None:
        plan, credits, built = self.plan, self.credits, self.built
        while credits.get() is _GO:
            index = next(self.indices, None)
            if index is None:
                return
            try:
                message = (index, read_checked(plan, read, index), None)
            except BaseException as error:
                built.put((index, _Failure(error), None))
                return
            built.put(message)
            del message

    def _produce_in_order(self) -> None:
        index = self.plan.start
        try:
            for message in read_in_order(self.plan, self._may_build):
                index = message[0] + 1
                self.built.put(message)
                del message
            self.built.put((index, _END, None))
        except BaseException as error:
            self.built.put((index, _Failure(error), None))

    def _may_build(self, index: int) -> bool:
        if index < self.plan.start:
            return not self.closed
        return self.credits.get() is _GO

    def _transfer(self) -> None:
        pending: dict[int, Any] = {}
        plan = self.plan
        index = plan.start
        in_order = plan.reader.open_indexed is None
        try:
            # An iterator has one message more: that it ended where its length says.
            for expected in range(plan.start, plan.stop + in_order):
                index, batch, state = self._receive(expected, pending)
                if batch is _STOP:
                    return
                if batch is _END:
                    break
                if isinstance(batch, _Failure):
                    self.items.put(batch)
                    return
                if self.slots.get() is _STOP:
                    return
                device = prepared(plan, index, batch)
                self.items.put(StreamItem(index, batch, device, state))
                del batch, device, state
                self.credits.put(_GO)
            self.items.put(_END)
        except BaseException as error:
            self.items.put(_Failure(error))

    def _receive(self, expected: int, pending: dict[int, Any]) -> tuple[int, Any, Any]:
        if not self.ordered:
            return self.built.get()
        deadline: float | None = None
        while expected not in pending:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                message = self.built.get(timeout=wait)
            except queue.Empty:
                return min((m for m in pending.values() if isinstance(m[1], _Failure)), key=_index_of)
            if message[1] is _STOP:
                return message
            pending[message[0]] = message
            if deadline is None and isinstance(message[1], _Failure):
                deadline = time.monotonic() + ORDER_SECONDS
        return pending.pop(expected)


class PrefetchStream(BatchStream):
    """Batches built by producer threads and prepared by one transfer thread.

    Args:
        plan: what the pass needs to know.
        workers: number of producers; a source that only iterates gets one.
        host_batches: bound of batches built and not yet prepared.
        device_batches: bound of prepared batches that wait for the loop.
        ordered: whether batches arrive in the source's order.
    """

    def __init__(
        self, plan: StreamPlan, *, workers: int, host_batches: int, device_batches: int, ordered: bool
    ) -> None:
        self._pipeline = _Pipeline(
            plan, workers=workers, host_batches=host_batches, device_batches=device_batches, ordered=ordered
        )
        self._items = self._pipeline.items
        self._slots = self._pipeline.slots
        self._delivered = 0
        self._finalizer = weakref.finalize(self, self._pipeline.signal)
        for thread in self._pipeline.threads:
            thread.start()

    def __next__(self) -> StreamItem:
        if self._delivered >= 2:
            # Only now is the batch before the last one surely out of the loop's hands.
            self._slots.put(_GO)
        try:
            item = self._items.get_nowait()
        except queue.Empty:
            item = self._wait()
        if type(item) is StreamItem:
            self._delivered += 1
            return item
        return self._finish(item)

    def _wait(self) -> Any:
        if self._pipeline.closed:
            return _END
        began = time.perf_counter()
        try:
            return self._items.get()
        finally:
            self.wait_seconds += time.perf_counter() - began

    def _finish(self, item: Any) -> StreamItem:
        self.close()
        if isinstance(item, _Failure):
            raise item.error
        raise StopIteration

    def close(self) -> None:
        pipeline = self._pipeline
        pipeline.signal()
        self._finalizer.detach()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in pipeline.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in pipeline.threads if thread.is_alive()]
        pipeline.threads = []
        for waiting in (pipeline.built, pipeline.items):
            while not waiting.empty():
                waiting.get_nowait()
        if stuck:
            warnings.warn(
                f"split `{pipeline.plan.split}`: {', '.join(stuck)} did not end within {JOIN_SECONDS:g} s; "
                "the data source is still busy in its own code, and ends with the process at the latest",
                NitroWarning,
                stacklevel=2,
            )
