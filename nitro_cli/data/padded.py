"""A train split that ends in a short batch, or in the middle of a step: padded, so that every step is a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nitro_cli.data.batches import leading_size, pad_batch
from nitro_cli.data.sources import Reader
from nitro_cli.data.split import Padding, Split

__all__ = ["padded_split"]


def padded_split(split: Split, last: int, accum: int) -> Split:
    """The split with its last batch padded, and as many batches of padding as its last step lacks.

    Padding repeats samples of the last batch.

    Args:
        split: with a last batch of `last` samples.
        last: at most its batch size.
        accum: micro-batches of a step.
    """
    size, real = split.batch_size, split.batches
    batches = -(-real // accum) * accum
    if last == size and batches == real:
        return split
    reader, resident = split._reader, split.resident
    # A batch that is not known to be short is not filled: the check of the stream refuses it.
    filled = size if last < size else 0
    indexed, ordered = reader.open_indexed, reader.open_ordered
    padded = Reader(
        reader.path,
        batches,
        open_indexed=indexed and _indexed(indexed, split.name, real, filled),
        open_ordered=ordered and _ordered(ordered, split.name, batches, filled),
        max_workers=reader.max_workers,
        skips_on_reentry=reader.skips_on_reentry,
        note=reader.note,
        rows=reader.rows if reader.rows is not None else (real - 1) * size + last,
        order=reader.order,
        fresh=reader.fresh,
    )
    full = real if last == size else real - 1
    return replace(
        split,
        batches=batches,
        resident=None if resident is None else replace(resident, sizes=(*resident.sizes, *[0] * (batches - real))),
        padding=Padding(full, last % size, replace(split, train=False)),
        _reader=padded,
    )


def _filled(batch: Any, name: str, index: int, size: int) -> Any:
    short = isinstance(batch, Mapping) and leading_size(batch, f"split `{name}`, batch {index}") < size
    return pad_batch(batch, size) if short else batch


def _indexed(opened: Callable[[int, int], Callable[[int], Any]], name: str, real: int, size: int) -> Any:
    def open_indexed(epoch: int, seed: int) -> Callable[[int], Any]:
        batch_at = opened(epoch, seed)

        def padded_at(index: int) -> Any:
            if index < real - 1:
                return batch_at(index)
            return _filled(batch_at(real - 1), name, index, size)

        return padded_at

    return open_indexed


def _ordered(opened: Callable[..., tuple[Iterator[Any], int]], name: str, batches: int, size: int) -> Any:
    def open_ordered(epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        batches_of, first = opened(epoch, seed, start, state)
        return _PaddedPass(batches_of, name, first, batches, size), first

    return open_ordered


class _PaddedPass:
    """A pass over a source that only iterates; what its iterator says of its state is passed on."""

    def __init__(self, inner: Iterator[Any], name: str, first: int, batches: int, size: int) -> None:
        self._inner, self._name, self._at, self._batches, self._size = inner, name, first, batches, size
        self._last: Any = None
        if callable(getattr(inner, "state", None)):
            self.state = inner.state  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._last = _filled(next(self._inner), self._name, self._at, self._size)
        except StopIteration:
            if self._last is None or self._at >= self._batches:
                raise
        self._at += 1
        return self._last
