"""The batches of one pass, as long as the run does not stop: a stop ends the waiting, and explains data that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from nitro_cli.data import BatchStream, StreamItem, WaitEnded
from nitro_cli.errors import DataError, warn
from nitro_cli.run.stopping import StopRequest

__all__ = ["DataStopped", "next_batch", "until_stopped"]


class DataStopped(Exception):
    """The run was asked to stop, and no further batch came."""


@contextlib.contextmanager
def until_stopped(
    stream: BatchStream, stop: StopRequest | None, split: str, *, patience: float
) -> Iterator[Iterator[StreamItem]]:
    """The items of a stream, as an iterator that raises `DataStopped` where the stop is why there is none.

    Args:
        stream: the stream, open.
        stop: the requests to stop; None outside of training.
        split: name of the split.
        patience: seconds that each batch may still take once a signal asked for the stop.
    """
    if stop is None:
        yield iter(stream)
        return
    with stop.hurrying(partial(stream.hurry, patience)):
        yield _items(stream, stop, split, patience)


def next_batch(items: Iterator[StreamItem], split: str, index: int) -> StreamItem:
    """The next of the items, which is batch `index`.

    Raises:
        DataError: the split ended before it.
        DataStopped: the run stops before it.
    """
    try:
        return next(items)
    except StopIteration:
        raise DataError(
            f"split {split!r} ended before batch {index}",
            why="it yielded fewer batches than its length says",
            fix="make len(source) the number of batches it yields",
        ) from None


def _items(stream: BatchStream, stop: StopRequest, split: str, patience: float) -> Iterator[Any]:
    while True:
        if stop.in_haste and not patience:
            raise DataStopped
        try:
            item = next(stream)
        except StopIteration:
            return
        except WaitEnded:
            if patience:
                _say(f"split `{split}`: no batch came for {patience:g} s after the signal: its pass is left")
            raise DataStopped from None
        except Exception as error:
            if not stop.explains_failure():
                raise
            lines = str(error).splitlines() or [""]
            _say(f"split `{split}`: its source failed as the run was stopping: {type(error).__name__}: {lines[0]}")
            raise DataStopped from error
        yield item
        # The name would keep the batch alive while the next one is awaited.
        del item


def _say(text: str) -> None:
    warn(text)
