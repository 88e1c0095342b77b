"""The threads that build host batches, and who builds what.

Waking a thread costs more than gathering a small batch. So requests go out in bursts, to one producer,
when the batches that wait have become few; when they run out, every batch is asked for at once, from
whichever producer has least to do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from nitro_cli.data.stream import StreamPlan, open_indexed, read_in_order
from nitro_cli.data.windows import END
from nitro_cli.data.worker_processes import block_group_signals

__all__ = ["STOP", "Message", "ProducerFailure", "Producers"]

STOP: Final = object()

Message = tuple[int, Any, Any, int]
"""Batch index, batch (or `ProducerFailure`, `STOP`, `END`), iterator state, producer."""


class ProducerFailure:
    """An exception on its way to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Producers:
    """Producer threads that write what they build to `built`. One other thread calls `refill` and `received`.

    Args:
        plan: what the pass needs to know.
        workers: number of producers; a source that only iterates gets one.
        host_batches: most batches that are asked for and not yet given back by `refill`.

    Attributes:
        built: what they built.
        count: how many messages were taken out of it.
        seconds: how long each producer was building.
    """

    def __init__(self, plan: StreamPlan, *, workers: int, host_batches: int) -> None:
        self.built: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.count = 0
        self._plan = plan
        self._closed = False
        self._free = 0
        self._few = host_batches // 2
        targets: list[Callable[[int], None]]
        if plan.reader.open_indexed is None:
            # One request more than batches: it allows the look behind the last one.
            self._indices = iter(range(plan.start, plan.stop + 1))
            targets = [self._produce_in_order]
        else:
            self._indices = iter(range(plan.start, plan.stop))
            read = open_indexed(plan)
            targets = [lambda worker: self._produce_by_index(worker, read)] * workers
        self._requests: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in targets]
        self._outstanding = [0] * len(targets)
        self.seconds = [0.0] * len(targets)
        self._began = 0.0
        for _ in range(host_batches):
            self._request(1)
        self.threads = [
            threading.Thread(
                target=target, args=(worker,), daemon=True, name=f"nitro-data-{plan.split}-producer-{worker}"
            )
            for worker, target in enumerate(targets)
        ]

    def signal(self) -> None:
        """Tell the producers to end; nothing waits."""
        self._closed = True
        for requests in self._requests:
            requests.put(STOP)
        self.built.put((-1, STOP, None, 0))

    def received(self, message: Message) -> None:
        """Note that a producer's message was taken out of `built`."""
        self._outstanding[message[3]] -= 1
        self.count += 1

    def refill(self, waiting: int) -> None:
        """Give back one host batch and ask for more, if few are waiting.

        Args:
            waiting: batches that are built and not yet taken.
        """
        self._free += 1
        if waiting <= self._few:
            self._request(self._free)
            self._free = 0

    def _request(self, count: int) -> None:
        worker = min(range(len(self._outstanding)), key=self._outstanding.__getitem__)
        for _ in range(count):
            index = next(self._indices, None)
            if index is None:
                return
            self._outstanding[worker] += 1
            self._requests[worker].put(index)

    def _produce_by_index(self, worker: int, read: Callable[[int], Any]) -> None:
        block_group_signals()
        requests, built = self._requests[worker], self.built
        while not self._closed:
            index = requests.get()
            if index is STOP:
                return
            began = time.perf_counter()
            try:
                message = (index, read(index), None, worker)
            except BaseException as error:
                built.put((index, ProducerFailure(error), None, worker))
                return
            self.seconds[worker] += time.perf_counter() - began
            built.put(message)
            # The name would keep the batch alive until the next one is built.
            del message

    def _produce_in_order(self, worker: int) -> None:
        block_group_signals()
        index = self._plan.start
        try:
            for index, batch, state in read_in_order(self._plan, self._may_build):
                self.seconds[worker] += time.perf_counter() - self._began
                self.built.put((index, batch, state, worker))
                del batch, state
                index += 1
            self.built.put((index, END, None, worker))
        except BaseException as error:
            self.built.put((index, ProducerFailure(error), None, worker))

    def _may_build(self, index: int) -> bool:
        if index < self._plan.start or self._closed:
            return not self._closed
        asked = self._requests[0].get() is not STOP
        self._began = time.perf_counter()
        return asked
