"""Batches built and moved by threads, ahead of the loop.

    producers  --built-->  one transfer thread  --items-->  the loop
               <-requests-                      <--slots--

A request allows one host batch, a slot one device batch. All of these are `queue.SimpleQueue`s, whose
operations run in C: what the loop pays per batch is a few microseconds. Where nothing is moved there is no
transfer thread, and the loop takes from the producers itself: waking a thread costs more than the rest.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Final

from nitro_cli.data.producers import END, STOP, Failure, Message, Producers
from nitro_cli.data.stream import BatchStream, StreamItem, StreamPlan, prepared
from nitro_cli.errors import NitroWarning

__all__ = ["PrefetchStream"]

JOIN_SECONDS: float = 5.0
"""How long closing waits for a producer that is inside the user's code."""

ORDER_SECONDS: float = 5.0
"""How long a producer's error waits for the batches before it."""

_GO: Final = object()


class _Pipeline:
    """What the threads share. It knows no stream, so that an abandoned stream can be collected."""

    def __init__(
        self, plan: StreamPlan, *, workers: int, host_batches: int, device_batches: int | None, ordered: bool
    ) -> None:
        self.plan = plan
        self.ordered = ordered
        self.closed = False
        self.waited = 0.0
        self.slots: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.producers = Producers(plan, workers=workers, host_batches=host_batches)
        self.threads = list(self.producers.threads)
        self.transfers = device_batches is not None
        if device_batches is not None:
            # Two more than are staged: the batch in the loop's hands and the one it just let go.
            for _ in range(device_batches + 2):
                self.slots.put(_GO)
            name = f"nitro-data-{plan.split}-transfer"
            self.threads.append(threading.Thread(target=self._transfer, name=name, daemon=True))

    def signal(self) -> None:
        """Tell all threads to end; nothing waits."""
        if not self.closed:
            self.closed = True
            self.producers.signal()
            self.slots.put(STOP)

    def _transfer(self) -> None:
        try:
            for item in self.deliver():
                self.items.put(item)
                # The name would keep the batch alive while the next one is awaited.
                del item
        except BaseException as error:
            self.items.put(Failure(error))

    def deliver(self) -> Iterator[Any]:
        """The prepared batches in order, then `END`; a `Failure` ends it, and so does closing."""
        pending: dict[int, Message] = {}
        plan, producers = self.plan, self.producers
        # An iterator has one message more: that it ended where its length says.
        more = 1 if plan.reader.open_indexed is None else 0
        for expected in range(plan.start, plan.stop + more):
            index, batch, state, _ = self._receive(expected, pending)
            if batch is STOP:
                return
            if batch is END:
                break
            if isinstance(batch, Failure):
                yield batch
                return
            if self.transfers and self.slots.get() is STOP:
                return
            item = StreamItem(index, batch, prepared(plan, index, batch), state)
            del batch, state
            while not producers.built.empty():
                self._take(producers.built.get(), pending)
            producers.refill(len(pending))
            yield item
            # The name would keep the batch alive while the next one is awaited.
            del item
        yield END

    def _receive(self, expected: int, pending: dict[int, Message]) -> Message:
        """Return the message to pass on next, waiting for it."""
        deadline: float | None = None
        while True:
            if expected in pending:
                return pending.pop(expected)
            if pending and not self.ordered:
                return pending.pop(next(iter(pending)))
            failed = [index for index, message in pending.items() if isinstance(message[1], Failure)]
            if failed and deadline is None:
                deadline = time.monotonic() + ORDER_SECONDS
            try:
                self._take(self._built(deadline), pending)
            except queue.Empty:
                return pending.pop(min(failed))
            if -1 in pending:
                return pending.pop(-1)

    def _built(self, deadline: float | None) -> Message:
        built = self.producers.built
        try:
            return built.get_nowait()
        except queue.Empty:
            began = time.perf_counter()
            try:
                return built.get(timeout=_left(deadline))
            finally:
                self.waited += time.perf_counter() - began

    def _take(self, message: Message, pending: dict[int, Message]) -> None:
        self.producers.received(message)
        pending[message[0]] = message


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class PrefetchStream(BatchStream):
    """Batches built by producer threads and prepared by one transfer thread.

    Args:
        plan: what the pass needs to know.
        workers: number of producers; a source that only iterates gets one.
        host_batches: bound of batches built and not yet prepared.
        device_batches: bound of prepared batches that wait for the loop; None where `prepare` moves nothing, and
            the loop calls it.
        ordered: whether batches arrive in the source's order.
    """

    def __init__(
        self, plan: StreamPlan, *, workers: int, host_batches: int, device_batches: int | None, ordered: bool
    ) -> None:
        self._pipeline = _Pipeline(
            plan, workers=workers, host_batches=host_batches, device_batches=device_batches, ordered=ordered
        )
        self._items = self._pipeline.items
        self._direct = None if self._pipeline.transfers else self._pipeline.deliver()
        self._slots = self._pipeline.slots
        self._delivered = 0
        self._finalizer = weakref.finalize(self, self._pipeline.signal)
        for thread in self._pipeline.threads:
            thread.start()

    def __next__(self) -> StreamItem:
        if self._direct is not None:
            return self._take_direct(self._direct)
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

    def _take_direct(self, direct: Iterator[Any]) -> StreamItem:
        try:
            item = END if self._pipeline.closed else next(direct, END)
        except BaseException:
            self.close()
            raise
        finally:
            self.wait_seconds = self._pipeline.waited
        return item if type(item) is StreamItem else self._finish(item)

    def _wait(self) -> Any:
        if self._pipeline.closed:
            return END
        began = time.perf_counter()
        try:
            return self._items.get()
        finally:
            self.wait_seconds += time.perf_counter() - began

    def _finish(self, item: Any) -> StreamItem:
        self.close()
        if isinstance(item, Failure):
            raise item.error
        raise StopIteration

    def close(self) -> None:
        pipeline = self._pipeline
        pipeline.signal()
        self._finalizer.detach()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in pipeline.threads:
            thread.join(_left(deadline))
        stuck = [thread.name for thread in pipeline.threads if thread.is_alive()]
        pipeline.threads = []
        waiting: queue.SimpleQueue[Any]
        for waiting in (pipeline.producers.built, pipeline.items):
            while not waiting.empty():
                waiting.get_nowait()
        if stuck:
            warnings.warn(
                f"split `{pipeline.plan.split}`: {', '.join(stuck)} did not end within {JOIN_SECONDS:g} s; "
                "the data source is still busy in its own code, and ends with the process at the latest",
                NitroWarning,
                stacklevel=2,
            )
