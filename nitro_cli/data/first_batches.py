"""The first batches of a data source, read the way the source itself is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from nitro_cli.data.adapters import adapt
from nitro_cli.data.arrays import ArrayBatches
from nitro_cli.data.wrappers import NoPrefetch, Prefetch, WithLength

__all__ = ["first_batches", "first_of_splits"]


def first_of_splits(splits: Mapping[str, Any], accum: int) -> dict[str, Any]:
    """The splits of `build_data`, each cut to what a smoke run needs: two optimizer steps, two evaluation batches."""
    return {name: first_batches(name, source, 2 * accum if name == "train" else 2) for name, source in splits.items()}


def first_batches(name: str, source: Any, count: int) -> Any:
    """A source of at most `count` batches of `source`, prefetched and kept on the device as it would be."""
    if isinstance(source, Prefetch | NoPrefetch):
        return dataclasses.replace(source, source=first_batches(name, source.source, count))
    if isinstance(source, ArrayBatches):
        return source.first(count * source.batch_size)
    if isinstance(source, list | tuple):
        return source[:count]
    adapted = adapt(name, source)
    if callable(getattr(adapted, "batch_at", None)) and callable(getattr(adapted, "begin_epoch", None)):
        return _FirstIndexed(adapted, count)
    if callable(getattr(adapted, "iterate", None)) and hasattr(adapted, "skips_on_reentry"):
        return _FirstOfEpoch(adapted, count)
    return WithLength(adapted, min(count, len(adapted)))


class _Cut:
    """What both wrappers share: the length, and everything else the source says of itself."""

    def __init__(self, source: Any, count: int) -> None:
        self._source = source
        self._count = count

    def __len__(self) -> int:
        return min(self._count, len(self._source))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)


class _FirstIndexed(_Cut):
    """The first batches of an epoch of an indexed source."""

    def begin_epoch(self, epoch: int, seed: int) -> Any:
        """The source's own plan."""
        return self._source.begin_epoch(epoch, seed)

    def batch_at(self, index: int, plan: Any) -> Any:
        """The source's own batch."""
        return self._source.batch_at(index, plan)


class _FirstOfEpoch(_Cut):
    """The first batches of an epoch of a source that iterates."""

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        """The source's own iterator, cut."""
        iterator, at = self._source.iterate(epoch, seed, start, state)
        return islice(iterator, max(0, len(self) - at)), at
