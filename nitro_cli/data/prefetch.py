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
import weakref
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from nitro_cli.data.producers import STOP, Message, ProducerFailure, Producers
from nitro_cli.data.stream import BatchStream, StreamPlan, WaitEnded, items_of
from nitro_cli.data.windows import END
from nitro_cli.data.worker_processes import block_group_signals
from nitro_cli.errors import warn

__all__ = ["PrefetchStream"]

JOIN_SECONDS: float = 5.0
"""How long closing waits for a producer that is inside the user's code."""

HURRIED_JOIN_SECONDS: float = 2.0
"""How long it waits after the stream was hurried."""

ORDER_SECONDS: float = 5.0
"""How long a producer's error waits for the batches before it."""

_GO: Final = object()
_WAKE: Final = object()


class _Pipeline:
    """What the threads share, and the feed of what is delivered. It knows no stream, which can be abandoned so."""

    def __init__(
        self, plan: StreamPlan, *, workers: int, host_batches: int, device_batches: int | None, ordered: bool
    ) -> None:
        self.plan = plan
        self.ordered = ordered
        self.closed = False
        self.waited = 0.0
        self.wanted = 1
        self.patience: float | None = None
        self._pending: dict[int, Message] = {}
        # An iterator has one message more: that it ended where its length says.
        self._expected = iter(range(plan.start, plan.stop + (plan.reader.open_indexed is None)))
        self._awaited = next(self._expected, None)
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
        block_group_signals()
        try:
            for item in self.deliver():
                self.items.put(item)
                # The name would keep the batch alive while the next one is awaited.
                del item
            self.items.put(END)
        except BaseException as error:
            self.items.put(ProducerFailure(error))

    def deliver(self) -> Iterator[Any]:
        """The prepared batches in order, or windows of them; a failure is raised in its place."""
        return items_of(self.plan, self, lambda: self.wanted)

    def take(self, wait: bool) -> Any:
        """The next batch: `(index, batch, iterator state)`, or `END`; None where it is not ready and not waited for."""
        if self._awaited is None:
            return END
        message = self._received(self._awaited) or (self._receive(self._awaited) if wait else None)
        if message is None:
            return None
        self._awaited = next(self._expected, None)
        index, batch, state, _ = message
        if batch is STOP or batch is END:
            self._awaited = None
            return END
        if isinstance(batch, ProducerFailure):
            raise batch.error
        return index, batch, state

    def taken(self) -> None:
        """The batch that was taken last left the host's memory: another may be built."""
        while not self.producers.built.empty():
            self._take(self.producers.built.get())
        self.producers.refill(len(self._pending))

    def forget(self) -> None:
        """Let go of what was built and not taken."""
        self._pending.clear()

    def room(self) -> bool:
        """Wait until another item may be on the device; False when the pass is closed."""
        return not (self.transfers and self.slots.get() is STOP)

    def _received(self, expected: int) -> Message | None:
        """The message to pass on next, if it is there."""
        pending, built = self._pending, self.producers.built
        while expected not in pending and not built.empty():
            self._take(built.get())
        if expected in pending:
            return pending.pop(expected)
        if pending and not self.ordered:
            return pending.pop(next(iter(pending)))
        return pending.pop(-1, None)

    def _receive(self, expected: int) -> Message:
        """Return the message to pass on next, waiting for it."""
        deadline: float | None = None
        while True:
            message = self._received(expected)
            if message is not None:
                return message
            failed = [index for index, found in self._pending.items() if isinstance(found[1], ProducerFailure)]
            if failed and deadline is None:
                deadline = time.monotonic() + ORDER_SECONDS
            try:
                self._take(self._built(deadline))
            except queue.Empty:
                if not failed:
                    raise WaitEnded from None
                return self._pending.pop(min(failed))

    def _built(self, deadline: float | None) -> Message:
        built = self.producers.built
        try:
            return built.get_nowait()
        except queue.Empty:
            began = time.perf_counter()
            try:
                return built.get(timeout=_left(deadline) if self.patience is None else self.patience)
            finally:
                self.waited += time.perf_counter() - began

    def wake(self) -> None:
        """Let a consumer that waits for a producer look at `patience`."""
        self.producers.built.put((-1, _WAKE, None, 0))

    def _take(self, message: Message) -> None:
        if message[1] is _WAKE:
            return
        self.producers.received(message)
        self._pending[message[0]] = message


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
        self._patience: float | None = None
        self._finalizer = weakref.finalize(self, self._pipeline.signal)
        for thread in self._pipeline.threads:
            thread.start()

    def __next__(self) -> Any:
        if self._direct is not None:
            return self._take_direct(self._direct)
        if self._delivered >= 2:
            # Only now is the batch before the last one surely out of the loop's hands.
            self._slots.put(_GO)
        try:
            item = self._items.get_nowait()
        except queue.Empty:
            item = self._wait()
        if item is _WAKE:
            item = self._wait()
        if item is END or isinstance(item, ProducerFailure):
            self._finish(item)
        self._delivered += 1
        return item

    def _take_direct(self, direct: Iterator[Any]) -> Any:
        try:
            item = END if self._pipeline.closed else next(direct, END)
        except BaseException:
            self.close()
            raise
        finally:
            self.wait_seconds = self._pipeline.waited
        if item is END:
            self._finish(item)
        return item

    def _wait(self) -> Any:
        if self._pipeline.closed:
            return END
        began = time.perf_counter()
        try:
            item: Any = _WAKE
            while item is _WAKE:
                item = self._items.get(timeout=self._patience)
            return item
        except queue.Empty:
            raise WaitEnded from None
        finally:
            self.wait_seconds += time.perf_counter() - began

    @property
    def built(self) -> tuple[int, float]:
        return self._pipeline.producers.count, sum(self._pipeline.producers.seconds)

    def want(self, batches: int) -> None:
        self._pipeline.wanted = batches

    def hurry(self, patience: float) -> None:
        if self._direct is None:
            self._patience = patience
            self._items.put(_WAKE)
        else:
            self._pipeline.patience = patience
            self._pipeline.wake()

    def _finish(self, item: Any) -> NoReturn:
        self.close()
        if isinstance(item, ProducerFailure):
            raise item.error
        raise StopIteration

    def close(self) -> None:
        pipeline = self._pipeline
        pipeline.signal()
        self._finalizer.detach()
        # A scheduler that asked for a stop does not wait long, and a source whose processes died never answers.
        hurried = self._patience is not None or pipeline.patience is not None
        seconds = min(JOIN_SECONDS, HURRIED_JOIN_SECONDS) if hurried else JOIN_SECONDS
        deadline = time.monotonic() + seconds
        for thread in pipeline.threads:
            thread.join(_left(deadline))
        stuck = [thread.name for thread in pipeline.threads if thread.is_alive()]
        pipeline.threads = []
        waiting: queue.SimpleQueue[Any]
        for waiting in (pipeline.producers.built, pipeline.items):
            while not waiting.empty():
                waiting.get_nowait()
        pipeline.forget()
        if stuck:
            warn(
                f"split `{pipeline.plan.split}`: {', '.join(stuck)} did not end within {seconds:g} s; "
                "the data source is still busy in its own code, and ends with the process at the latest"
            )
