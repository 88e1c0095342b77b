"""Whether a source's `batch_at` agrees with its own iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.data.batches import leading_size
from nitro_cli.data.ownership import owned_batch
from nitro_cli.data.sources import source_seed
from nitro_cli.data.wrappers import NoPrefetch, Prefetch
from nitro_cli.errors import DataError

__all__ = ["check_batch_at"]

_END = object()


def check_batch_at(source: Any, values: bool = False) -> None:
    """Assert that `batch_at` yields, batch for batch, what iterating the source yields.

    The check catches a `batch_at` that takes its index for a sample's: such a source trains without
    complaint, on overlapping windows of its first samples. `batch_at` is called with the plan of
    `begin_epoch(0, seed)`, the seed being the source's own or 0.

    Args:
        source: an index-addressable data source, wrapped or not.
        values: whether contents are compared too, which a source needs to be deterministic for; else
            names, shapes and dtypes are.

    Raises:
        DataError: a batch differs; its index, the field and both sides are named.
    """
    source = source.source if isinstance(source, (Prefetch, NoPrefetch)) else source
    kind = type(source).__name__
    if not (callable(getattr(source, "batch_at", None)) and callable(getattr(source, "begin_epoch", None))):
        raise DataError(
            f"{kind} has no `batch_at` and `begin_epoch` to check",
            where="check_batch_at(source)",
            fix="define begin_epoch(epoch, seed) -> plan and batch_at(index, plan) -> batch",
        )
    plan = source.begin_epoch(0, source_seed(source, 0))
    batches = len(source)
    iterator = iter(source)
    for index in range(batches):
        expected: Any = next(iterator, _END)
        if expected is _END:
            raise DataError(
                f"iterating {kind} ends after {index} batches, its length says {batches}",
                where=f"{kind}, batch {index}",
                fix="let __len__ count the batches that __iter__ yields",
            )
        leading_size(expected, f"{kind}.__iter__, batch {index}")
        expected = owned_batch(expected)  # `batch_at` may fill the array that the iteration filled
        _compare(f"{kind}.batch_at, batch {index}", source.batch_at(index, plan), expected, values)
    if next(iterator, _END) is not _END:
        raise DataError(
            f"iterating {kind} yields more than the {batches} batches of its length",
            where=f"{kind}, batch {batches}",
            fix="let __len__ count the batches that __iter__ yields",
        )


def _compare(where: str, got: Any, expected: Any, values: bool) -> None:
    leading_size(got, where)
    if got.keys() != expected.keys():
        raise DataError(
            f"batch_at has the fields {sorted(got)}, iteration has {sorted(expected)}",
            where=where,
            fix="let both build their batches by the same function",
        )
    for name in expected:
        a, b = np.asarray(got[name]), np.asarray(expected[name])
        place = f"{where}, field `{name}`"
        if a.shape != b.shape or a.dtype != b.dtype:
            raise DataError(
                f"batch_at gives {a.dtype}{list(a.shape)}, iteration gives {b.dtype}{list(b.shape)}",
                where=place,
                why="both must give the same batch for the same index",
                fix="check that batch_at takes a BATCH index: its first sample is index * batch_size",
            )
        if values and not _equal(a, b):
            raise DataError(
                "batch_at and iteration give different contents",
                where=place,
                why="both must give the same batch for the same index, and a random source cannot be compared by value",
                fix="check that batch_at takes a BATCH index (its first sample is index * batch_size), and that "
                "__iter__ follows the plan of begin_epoch(0, seed)",
            )


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
