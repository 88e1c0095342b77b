"""Setup of a split: its promises checked, its first batch drawn, its prefetch resolved."""

from __future__ import annotations

import os
from typing import Any

from nitro_cli.data.adapters import adapt
from nitro_cli.data.arrays import ArrayBatches
from nitro_cli.data.batches import batch_length, field_specs, leading_size
from nitro_cli.data.first_batch import first_batch
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


def inspect_split(name: str, source: Any, *, train: bool = False, accum: int = 1, seed: int = 0) -> Split:
    """Check what a split promises and draw its first batch.

    Args:
        name: name of the split.
        source: what `build_data` returned for it, wrapped or not.
        train: whether the split is trained on: no partial batch, and a batch count divisible by `accum`.
        accum: micro-batches per optimizer step.
        seed: seed of the run.

    Raises:
        DataError: a promise is broken; split, batch, field and the fix are named.
    """
    unwrapped = source.source if isinstance(source, (Prefetch, NoPrefetch)) else source
    adapted = adapt(name, unwrapped)
    reader = reader_of(name, adapted)
    if train and reader.batches % accum:
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
    if train:
        _refuse_partial(name, adapted, reader, size, seed)
    resident = None
    if isinstance(unwrapped, ArrayBatches):
        resident = unwrapped.resident_arrays(wrapped=unwrapped is not source)
    return Split(
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


def _refuse_partial(name: str, source: Any, reader: Reader, size: int, seed: int) -> None:
    last = getattr(source, "last_batch_size", None)
    if last is None:
        if reader.open_indexed is None:
            return  # Known only when the pass gets there; the stream's check refuses it then.
        index = reader.batches - 1
        last = leading_size(reader.open_indexed(0, seed)(index), f"split `{name}`, batch {index}")
    if last != size:
        raise DataError(
            f"the last of {reader.batches} batches has {last} samples, the first has {size}",
            where=f"split `{name}`, batch {reader.batches - 1}",
            why="a partial batch would weigh its samples more than the others' in training",
            fix="drop it (drop_last=True), or choose a batch size that divides the number of samples",
        )


def _resolve_prefetch(name: str, source: Any, reader: Reader) -> PrefetchPlan:
    if isinstance(source, NoPrefetch):
        return PrefetchPlan("inline", 0, 0, 0, True, reader.skips_on_reentry, reader.note)
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
    )
