"""Setup of a split: its promises checked, its first batch drawn, its prefetch resolved."""

from __future__ import annotations

import os
from typing import Any

from nitro_cli.data.adapters import adapt
from nitro_cli.data.arrays import ArrayBatches
from nitro_cli.data.batches import batch_length, field_specs, leading_size
from nitro_cli.data.first_batch import first_batch
from nitro_cli.data.padded import padded_split
from nitro_cli.data.sources import Reader, reader_of
from nitro_cli.data.split import PrefetchPlan, Split
from nitro_cli.data.wrappers import NoPrefetch, Prefetch
from nitro_cli.errors import DataError, warn

__all__ = ["default_workers", "inspect_split"]

_MOST_WORKERS = 4


def default_workers() -> int:
    """Return how many producers an index-addressable source gets: one per usable core, at most 4."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


def inspect_split(
    name: str, source: Any, *, train: bool = False, accum: int = 1, seed: int = 0, pads: bool = False
) -> Split:
    """Check what a split promises and draw its first batch.

    Args:
        name: name of the split.
        source: what `build_data` returned for it, wrapped or not.
        train: whether the split is trained on: no partial batch, and a batch count divisible by `accum`.
        accum: micro-batches per optimizer step.
        seed: seed of the run.
        pads: whether a train split may end in a partial batch or in the middle of a step: it is padded then.

    Raises:
        DataError: a promise is broken; split, batch, field and the fix are named.
    """
    unwrapped = source.source if isinstance(source, (Prefetch, NoPrefetch)) else source
    adapted = adapt(name, unwrapped)
    reader = reader_of(name, adapted)
    if train and not pads and reader.batches % accum:
        rest = reader.batches % accum
        raise DataError(
            f"{reader.batches} batches do not divide into steps of accum={accum} micro-batches: {rest} left over",
            where=f"split `{name}`",
            why="every optimizer step accumulates the same number of micro-batches",
            fix=f"leave out {rest} batches (or add {accum - rest}), or choose an accum that divides {reader.batches}",
        )
    example = first_batch(name, reader, seed)
    size = batch_length(example)
    if size == 0:
        raise DataError(
            "the first batch has no samples", where=f"split `{name}`, batch 0", fix="leave empty batches out"
        )
    last = _last_size(name, adapted, reader, size, seed) if train else None
    if train and not pads and last is not None and last != size:
        raise _partial(name, reader, size, last)
    resident = None
    if isinstance(unwrapped, ArrayBatches):
        resident = unwrapped.resident_arrays(wrapped=unwrapped is not source)
    split = Split(
        name=name,
        source=unwrapped,
        batches=reader.batches,
        batch_size=size,
        fields=field_specs(example),
        example=example,
        prefetch=_resolve_prefetch(name, source, reader),
        resident=resident,
        train=train,
        _reader=reader,
    )
    # Where nobody knows the last batch before it comes it has to be full: the check of the stream sees to that.
    return padded_split(split, size if last is None else last, accum) if train and pads else split


def _last_size(name: str, source: Any, reader: Reader, size: int, seed: int) -> int | None:
    """Samples of the last batch; None where that is known when the pass gets there."""
    last = getattr(source, "last_batch_size", None)
    if last is not None:
        return int(last)
    if reader.open_indexed is None:
        last = None if reader.rows is None else reader.rows - (reader.batches - 1) * size
        return last if last is not None and 0 < last < size else None
    index = reader.batches - 1
    return leading_size(reader.open_indexed(0, seed)(index), f"split `{name}`, batch {index}")


def _partial(name: str, reader: Reader, size: int, last: int) -> DataError:
    return DataError(
        f"the last of {reader.batches} batches has {last} samples, the first has {size}",
        where=f"split `{name}`, batch {reader.batches - 1}",
        why="a partial batch would weigh its samples more than the others' in training",
        fix="drop it (drop_last=True), choose a batch size that divides the number of samples, or declare `valid` in "
        "`loss` and `train_metrics`, and return sums over the valid rows",
    )


def _resolve_prefetch(name: str, source: Any, reader: Reader) -> PrefetchPlan:
    if isinstance(source, NoPrefetch):
        return PrefetchPlan("inline", 0, 0, 0, True, reader.skips_on_reentry, reader.note, window=1)
    wanted = source if isinstance(source, Prefetch) else Prefetch(source)
    most = reader.max_workers
    workers = wanted.workers or default_workers()
    if most is not None and workers > most:
        if wanted.workers is not None:
            message = f"split `{name}`: {workers} workers asked for, its source can be served by {most} only"
            warn(message + (f" ({reader.note})" if reader.note else ""))
        workers = most
    ordered = wanted.ordered or workers == 1
    note = reader.note
    if not ordered:
        note = "unordered: runs do not repeat bitwise, and a mid-epoch resume may repeat or miss batches"
    return PrefetchPlan(
        reader.path,
        workers,
        wanted.device_batches,
        wanted.host_batches or 2 * workers,
        ordered,
        reader.skips_on_reentry,
        note,
        wanted.window,
        follows=wanted == Prefetch(wanted.source, window=wanted.window),
    )
