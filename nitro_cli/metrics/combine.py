"""Combining a leaf's values over batches, and the one division at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.errors import MetricError, warn
from nitro_cli.metrics.leaves import CombinedLeaf
from nitro_cli.metrics.values import INT64_LIMIT, Concat, Max, Mean, Min

__all__ = ["divide_leaf", "join_leaf"]


def join_leaf(kept: CombinedLeaf | None, new: CombinedLeaf, name: str, where: str) -> CombinedLeaf:
    """Return `new` combined with what was kept; `kept` itself is not changed."""
    if kept is None:
        _check_bound(new, name, where)
        return new
    if new.mode is Concat:
        _check_dtypes(kept.parts[0], new.parts[0], name, where)
        return new
    if new.mode is Max or new.mode is Min:
        pick = (np.maximum if new.mode is Max else np.minimum) if new.shape else (_max if new.mode is Max else _min)
        new.value = pick(kept.value, new.value)
        new.bound = max(kept.bound, new.bound)
    else:
        new.bound += kept.bound
        new.count_bound += kept.count_bound
        _check_bound(new, name, where)
        new.value = kept.value + new.value
        if new.mode is Mean:
            new.count = kept.count + new.count
    return new


def _max(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


def _min(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


def _check_bound(leaf: CombinedLeaf, name: str, where: str) -> None:
    if max(leaf.bound, leaf.count_bound) >= INT64_LIMIT:
        raise MetricError(
            f"The integers of {name!r} no longer fit 64 bits.", where=where, fix="return floating-point numbers"
        )


def _check_dtypes(first: np.ndarray, new: np.ndarray, name: str, where: str) -> None:
    if first.dtype == new.dtype or first.dtype.kind == new.dtype.kind != "V":
        return
    if first.dtype.kind in "biuf" and new.dtype.kind in "biuf":
        return
    raise MetricError(
        f"{name!r} has entries of dtype {new.dtype} here and had {first.dtype} before.",
        where=where,
        why="joining them would convert one into the other",
        fix="return one dtype for all batches",
    )


def divide_leaf(leaf: CombinedLeaf, name: str, where: str) -> Any:
    """Return the total over the count; an entry whose count is zero is NaN with a warning, unless all are."""
    zero = np.equal(leaf.count, 0)
    if not np.any(zero):
        try:
            return leaf.value / leaf.count
        except OverflowError:
            raise MetricError(
                f"The mean of {name} is beyond every floating-point number.", where=where, fix="scale what it sums"
            ) from None
    if np.all(zero) or np.any(np.broadcast_to(zero, leaf.shape) & np.not_equal(leaf.value, 0)):
        raise MetricError(
            f"The count of {name} is zero over the whole split.",
            where=where,
            why="its mean is undefined",
            fix="count what the total sums over, or report the total as Sum(x)",
        )
    warn(
        f"{int(np.sum(zero))} of {np.size(zero)} counts of {name} are zero over the whole split ({where}); "
        "those entries are NaN."
    )
    with np.errstate(invalid="ignore"):
        return np.divide(leaf.value, leaf.count)
