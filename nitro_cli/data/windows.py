"""Windows: batches that reach the device together, each field in one array, for steps that share a call.

A window is what is ready: it ends with the batches that were asked for, or where the next one would have to be waited
for. So a slow source is not held back by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from nitro_cli.data.batches import FieldSpec
from nitro_cli.data.buffers import BatchBuffers

__all__ = ["END", "Feed", "WindowItem", "WindowPlan", "gathered", "gathered_at_once"]

END: Final = object()

Taken = tuple[int, Mapping[str, np.ndarray], Any]
"""Batch index, batch, iterator state."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowItem:
    """Several delivered batches.

    Args:
        index: index of the first, from 0.
        count: how many, whole steps of them.
        device: what `WindowPlan.place` returned for them.
        states: the source's own iterator state after each, where it has one.
    """

    index: int
    count: int
    device: Any
    states: tuple[Any, ...]


@dataclass(frozen=True)
class WindowPlan:
    """How a pass gathers its batches.

    Args:
        fields: the fields that travel, as the device holds them.
        rows: samples of a batch.
        capacity: the most batches of a window, a multiple of `group`.
        group: batches of a step.
        place: moves the arrays of a window, `[capacity, rows, ...]` by field.
    """

    fields: Mapping[str, FieldSpec]
    rows: int
    capacity: int
    group: int
    place: Callable[[Mapping[str, np.ndarray]], Any]

    @property
    def nbytes(self) -> int:
        """Bytes of a window."""
        return sum(int(np.prod(self.shape(spec))) * spec.dtype.itemsize for spec in self.fields.values())

    def shape(self, spec: FieldSpec) -> tuple[int, ...]:
        """Shape of a field's array."""
        return (self.capacity, self.rows, *spec.shape)

    def fits(self, batch: Mapping[str, np.ndarray]) -> bool:
        """Whether a checked batch has the shapes of the others."""
        return all(batch[name].shape[1:] == spec.shape for name, spec in self.fields.items())

    def whole_steps(self, batches: int) -> int:
        """As many batches as are asked for, in whole steps, at least one and at most the capacity."""
        return min(max(batches - batches % self.group, self.group), self.capacity)


class Feed(Protocol):
    """The batches of a pass, as the one who gathers them asks for them."""

    def take(self, wait: bool) -> Taken | object | None:
        """The next batch, or `END`; None where `wait` is not set and none is ready. Raises what the source raised."""
        ...

    def taken(self) -> None:
        """The batch that was taken last is copied or moved."""
        ...

    def room(self) -> bool:
        """Wait until another item may be moved; False ends the pass."""
        ...


class _Arrays:
    """Memory of the windows of a pass, used again once nobody reads it."""

    def __init__(self, plan: WindowPlan) -> None:
        self._buffers = {name: BatchBuffers(plan.shape(spec), spec.dtype) for name, spec in plan.fields.items()}

    def take(self) -> dict[str, np.ndarray]:
        return {name: buffer.take() for name, buffer in self._buffers.items()}


def gathered(
    plan: WindowPlan, feed: Feed, wanted: Callable[[], int], single: Callable[[int, Any, Any], Any]
) -> Iterator[Any]:
    """Yield the windows of a pass; once a batch has another shape than the first, what `single` makes of each batch.

    Args:
        plan: of the windows.
        feed: the batches.
        wanted: asked how many batches a window should have at most.
        single: `(index, batch, state)` to the item of one batch; the batch is its own.
    """
    memory = _Arrays(plan)
    got: Any = feed.take(True)
    while got is not END and plan.fits(got[1]):
        if not feed.room():
            return
        window, got, problem = _filled(plan, feed, memory.take(), got, plan.whole_steps(wanted()))
        if window.whole:
            yield WindowItem(
                window.first, window.whole, plan.place(window.arrays), tuple(window.states[: window.whole])
            )
        if problem is not None:
            raise problem
        for at in range(window.whole, len(window.states)):
            # The window that did not come to be leaves its room.
            if (window.whole or at) and not feed.room():
                return
            yield single(window.first + at, {name: rows[at] for name, rows in window.arrays.items()}, window.states[at])
        # The name would keep the batches alive while the next are awaited.
        del window
        if got is None:
            got = feed.take(True)
    while got is not END:
        if not feed.room():
            return
        index, batch, state = got
        got = None
        item = single(index, {name: array.copy() for name, array in batch.items()}, state)
        del batch
        feed.taken()
        yield item
        del item
        got = feed.take(True)


@dataclass(slots=True)
class _Window:
    arrays: dict[str, np.ndarray]
    first: int
    states: list[Any]
    whole: int = 0


def _filled(
    plan: WindowPlan, feed: Feed, arrays: dict[str, np.ndarray], got: Any, most: int
) -> tuple[_Window, Any, Exception | None]:
    """A window of the batch that was got and those that follow; what was got behind it, and what was raised there."""
    window = _Window(arrays, got[0], [])
    problem = None
    while got is not None and got is not END and plan.fits(got[1]):
        at = len(window.states)
        for name, rows in arrays.items():
            # Whether a number fits was checked where the batch was built.
            np.copyto(rows[at], got[1][name], casting="unsafe")
        window.states.append(got[2])
        got = None
        feed.taken()
        if at + 1 == most:
            break
        try:
            got = feed.take((at + 1) % plan.group != 0)
        except Exception as error:
            problem = error
    window.whole = len(window.states) - len(window.states) % plan.group
    return window, got, problem


def gathered_at_once(
    plan: WindowPlan, fill: Callable[[Mapping[str, np.ndarray], int, int], None], span: range, wanted: Callable[[], int]
) -> Iterator[WindowItem]:
    """Yield the windows of a pass over a source that fills a whole window by itself.

    Args:
        plan: of the windows.
        fill: `(arrays, index, count)`, writes batches into the first rows of the arrays.
        span: the batches of the pass.
        wanted: asked how many batches a window should have at most.
    """
    memory = _Arrays(plan)
    index = span.start
    while index < span.stop:
        count, arrays = min(plan.whole_steps(wanted()), span.stop - index), memory.take()
        fill(arrays, index, count)
        item = WindowItem(index, count, plan.place(arrays), (None,) * count)
        del arrays
        yield item
        del item
        index += count
