"""What a data source is, and how the stream reads each kind of it."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from nitro_cli.errors import DataError

__all__ = ["BatchSource", "EpochSource", "IndexedSource", "Reader", "reader_of"]

Batch = Mapping[str, Any]


@runtime_checkable
class BatchSource(Protocol):
    """The least that a split can be: restartable, of known length, yielding mappings of host arrays."""

    def __iter__(self) -> Iterator[Batch]:
        """Start over from the first batch."""
        ...

    def __len__(self) -> int:
        """Return the number of batches."""
        ...


@runtime_checkable
class IndexedSource(Protocol):
    """A source whose batches can be built in any order, by several threads, and entered anywhere.

    An attribute `seed` that holds an integer goes before the run's seed; None follows it. Records keep what a source of
    any kind says in `samples`, a number of rows, and `order`, a text: a resume compares them.
    """

    def __len__(self) -> int:
        """Return the number of batches."""
        ...

    def begin_epoch(self, epoch: int, seed: int) -> Any:
        """Return the plan of an epoch (from 1; 0 in evaluation): a function of epoch and seed only."""
        ...

    def batch_at(self, index: int, plan: Any) -> Batch:
        """Return BATCH `index` (from 0): thread-safe, a function of index and plan only, never None."""
        ...


@runtime_checkable
class EpochSource(Protocol):
    """A source that starts its own iteration at a given epoch and batch; adapters are of this form.

    An iterator with a method `state()` (JSON-ready) is asked after every batch; the value comes back
    as `state` when the epoch is entered again after that batch.
    """

    skips_on_reentry: bool

    def __len__(self) -> int:
        """Return the number of batches."""
        ...

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Batch], int]:
        """Return the epoch's iterator and the index of the batch that it yields first, at most `start`."""
        ...


@dataclass(frozen=True)
class Reader:
    """One way of reading for all sources: by index, or in order.

    Args:
        path: "indexed", "list" or "iterator".
        batches: number of batches of an epoch.
        open_indexed: (epoch, seed) to a thread-safe function from batch index to batch.
        open_filling: (epoch, seed) to a function `(arrays, index, count)` that writes `count` batches from `index` on
            into the first rows of arrays `[capacity, batch size, ...]` by field; None where they come one by one.
        open_ordered: (epoch, seed, start, state) to an iterator and the index it starts at.
        max_workers: most producers that the source can serve.
        skips_on_reentry: whether entering an epoch in its middle reads the batches before.
        note: what the setup report should say about the source.
        rows: samples of the whole source; None where it does not say.
        order: what its order is a function of, in words; None where it does not say.
        fresh: whether every batch lies in memory of its own, which the source never writes again.
    """

    path: str
    batches: int
    open_indexed: Callable[[int, int], Callable[[int], Any]] | None = None
    open_filling: Callable[[int, int], Callable[[Mapping[str, Any], int, int], None]] | None = None
    open_ordered: Callable[[int, int, int, Any], tuple[Iterator[Any], int]] | None = None
    max_workers: int | None = None
    skips_on_reentry: bool = False
    note: str | None = None
    rows: int | None = None
    order: str | None = None
    fresh: bool = False


def reader_of(name: str, source: Any) -> Reader:
    """Return the reader of a source.

    Args:
        name: name of the split, for errors.
        source: the (unwrapped, adapted) source.

    Raises:
        DataError: the source breaks a promise: restartable, of known length, not empty.
    """
    where = f"split `{name}`"
    _refuse_wrong_kinds(source, where)
    rows, order = getattr(source, "samples", None), getattr(source, "order", None)
    return replace(
        _way_of_reading(source, where),
        rows=int(rows) if isinstance(rows, numbers.Integral) and not isinstance(rows, bool) else None,
        order=order if isinstance(order, str) else None,
        fresh=getattr(source, "fresh_batches", None) is True or type(source) in (list, tuple),
    )


def _way_of_reading(source: Any, where: str) -> Reader:
    batches = _batch_count(source, where)
    indexed = _has(source, "batch_at") and _has(source, "begin_epoch")
    if indexed:
        _check_signatures(source, where)
        return Reader(
            "indexed",
            batches,
            open_indexed=lambda epoch, seed: _open_indexed(source, epoch, seed),
            open_filling=_filling(source),
            max_workers=getattr(source, "max_workers", None),
            note=getattr(source, "note", None),
        )
    if isinstance(source, (list, tuple)):
        return Reader("list", batches, open_indexed=lambda epoch, seed: _open_list(source), max_workers=1)
    if _has(source, "iterate") and hasattr(source, "skips_on_reentry"):
        return Reader(
            "iterator",
            batches,
            open_ordered=source.iterate,
            max_workers=1,
            skips_on_reentry=bool(source.skips_on_reentry),
            note=getattr(source, "note", None),
        )
    _check_restartable(source, where)
    lacking = "begin_epoch" if _has(source, "batch_at") else "batch_at and begin_epoch"
    return Reader(
        "iterator",
        batches,
        open_ordered=lambda epoch, seed, start, state: _open_iterable(source, epoch),
        max_workers=1,
        skips_on_reentry=True,
        note=f"iterates only: one producer, and a mid-epoch resume skips batches; {lacking} would avoid both",
    )


def source_seed(source: Any, seed: int) -> int:
    """Return the seed that holds for a source: its own attribute `seed`, or the run's where that is None."""
    own = getattr(source, "seed", None)
    return int(own) if isinstance(own, numbers.Integral) and not isinstance(own, bool) else seed


def _open_indexed(source: Any, epoch: int, seed: int) -> Callable[[int], Any]:
    plan = source.begin_epoch(epoch, source_seed(source, seed))
    batch_at = source.batch_at
    return lambda index: batch_at(index, plan)


def _filling(source: Any) -> Callable[[int, int], Callable[[Mapping[str, Any], int, int], None]] | None:
    """How a source fills windows; not where its batches are made by something else, such as a transform."""
    if not _has(source, "fill") or getattr(source, "fresh_batches", None) is not True:
        return None

    def opened(epoch: int, seed: int) -> Callable[[Mapping[str, Any], int, int], None]:
        plan = source.begin_epoch(epoch, source_seed(source, seed))
        return lambda arrays, index, count: source.fill(arrays, index, count, plan)

    return opened


def _open_list(source: Sequence[Any]) -> Callable[[int], Any]:
    return source.__getitem__


def _open_iterable(source: Any, epoch: int) -> tuple[Iterator[Any], int]:
    if _has(source, "set_epoch"):
        source.set_epoch(epoch)
    return iter(source), 0


def _has(source: Any, method: str) -> bool:
    return callable(getattr(source, method, None))


def _refuse_wrong_kinds(source: Any, where: str) -> None:
    if source is None:
        raise DataError("the split is None", where=where, fix="leave the split out of build_data's mapping")
    if isinstance(source, Mapping):
        raise DataError(
            f"the split is a mapping with the keys {sorted(map(str, source))[:8]}, not an iterable of batches",
            where=where,
            fix="wrap whole arrays in ArrayBatches(arrays, batch_size), or a single batch in a list",
        )
    if isinstance(source, type):
        raise DataError(f"the split is the class {source.__name__}", where=where, fix="return an instance of it")


def _batch_count(source: Any, where: str) -> int:
    kind = type(source).__name__
    if isinstance(source, Iterator):
        # Before the length: for a generator both promises are broken, and this one names the cause.
        _check_restartable(source, where)
    try:
        batches = len(source)
    except TypeError as error:
        raise DataError(
            f"the source ({kind}) has no length",
            where=where,
            why="the number of batches fixes the schedules' horizon and the progress display at setup",
            fix="define __len__ as the number of batches of an epoch, or give it: "
            "nitro_cli.data.WithLength(source, batches)",
        ) from error
    if batches == 0:
        raise DataError(
            f"the split is empty: the source ({kind}) has 0 batches",
            where=where,
            fix="leave the split out, or check the data's path, the batch size and drop_last",
        )
    return batches


def _check_restartable(source: Any, where: str) -> None:
    kind = type(source).__name__
    if not hasattr(type(source), "__iter__") and not hasattr(type(source), "__getitem__"):
        raise DataError(
            f"the source ({kind}) cannot be iterated",
            where=where,
            fix="define __iter__ and __len__, or batch_at, begin_epoch and __len__",
        )
    if isinstance(source, Iterator):
        raise DataError(
            f"the source ({kind}) is an iterator, which can be read only once",
            where=where,
            why="setup draws one batch and every epoch starts over: the source would be exhausted",
            fix="return an object whose __iter__ starts over (a list, ArrayBatches, a loader), not iter(...) of it",
        )


def _check_signatures(source: Any, where: str) -> None:
    for method, arguments, shown in (
        ("begin_epoch", (1, 0), "begin_epoch(epoch, seed) -> plan"),
        ("batch_at", (0, None), "batch_at(index, plan) -> batch"),
    ):
        try:
            signature = inspect.signature(getattr(source, method))
        except (TypeError, ValueError):
            continue
        try:
            signature.bind(*arguments)
        except TypeError as error:
            raise DataError(
                f"`{method}{signature}` does not take the two arguments it is called with",
                where=f"{where}, {type(source).__name__}.{method}",
                why=str(error),
                fix=f"declare it as {shown}",
            ) from error
