"""What can be wrong with the targets of a batch, looked for on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.experiment import BatchProblem

__all__ = ["class_problem", "column_problem", "mask_problem", "share_problem", "weight_problem", "width_problem"]

SUM_TOLERANCE = 1e-5
"""How far the sum of a distribution may be from 1."""


def width_problem(width: int, what: str, declared: Mapping[str, int | None]) -> BatchProblem | None:
    """Refuse an output whose width is not the declared one.

    Args:
        width: what the output has.
        what: what there are so many of.
        declared: what says so, and how many; None says nothing.
    """
    for name, size in declared.items():
        if size is not None and size != width:
            return BatchProblem(
                f"the output has {width} {what}, {name} says {size}",
                why="each is one column of the output",
                fix=f"change the last layer of the model, or {name}",
            )
    return None


def mask_problem(mask: np.ndarray | None, target: np.ndarray, field: str | None) -> BatchProblem | None:
    """Refuse a mask that is no truth value per sample or per entry of the target."""
    if mask is None or (mask.dtype == bool and mask.shape == target.shape[: mask.ndim]):
        return None
    return BatchProblem(
        f"the mask {field} is {mask.dtype}{list(mask.shape)}, the target has the shape {list(target.shape)}",
        why="a mask is True for what counts, one truth value per sample or per entry",
        fix=f"give {field} as bool, samples first",
    )


def weight_problem(weight: np.ndarray | None, field: str | None) -> BatchProblem | None:
    """Refuse weights that are not one number per sample, finite and 0 or more."""
    if weight is None:
        return None
    if weight.ndim != 1 or weight.dtype.kind not in "fiu":
        return BatchProblem(
            f"the weight {field} is {weight.dtype}{list(weight.shape)}", why="it is a number per sample"
        )
    wrong = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if not len(wrong):
        return None
    return BatchProblem(f"the weight {field} is {weight[wrong[0]]}", int(wrong[0]), why="a weight is finite, 0 or more")


def class_problem(
    target: np.ndarray, counts: np.ndarray | None, classes: int, rank: int, ignored: int | None
) -> BatchProblem | None:
    """Refuse targets that are no class numbers.

    Args:
        target: what should be whole numbers of `rank` axes.
        counts: what the mask lets through; None is everything.
        classes: how many there are.
        rank: axes of the output without that of the classes.
        ignored: the number of what does not count.
    """
    if target.dtype.kind not in "iu" or target.ndim != rank:
        return BatchProblem(
            f"the target is {target.dtype}{list(target.shape)}",
            why=f"class numbers are whole numbers of {rank} axes here; distributions are floats with one axis more",
            fix="give class numbers from 0, or name another output or class_axis",
        )
    wrong = _shown((target < 0) | (target >= classes), counts)
    if ignored is not None:
        wrong &= target != ignored
    return _first(
        target,
        wrong,
        why=f"there are {classes} classes, 0 to {classes - 1}",
        fix="mark what does not count with ignore_index, or with a mask",
    )


def share_problem(target: np.ndarray, counts: np.ndarray | None, classes: int) -> BatchProblem | None:
    """Refuse targets (N, ..., C) that are no distributions over the classes; NaN is what does not count."""
    if target.shape[-1] != classes:
        return BatchProblem(f"the target is a distribution over {target.shape[-1]} classes", why=f"there are {classes}")
    has = ~np.isnan(target).any(axis=-1)
    found = _first(target, _shown((target < 0) | np.isinf(target), counts), why="a share is 0 to 1")
    if found is not None:
        return found
    total = np.where(has, target.astype(np.float64).sum(axis=-1), 1.0)
    wrong = _shown(np.abs(total - 1) > SUM_TOLERANCE, counts)
    return _first(total, wrong, why="a distribution adds up to 1", what="the target adds up to")


def column_problem(
    outputs: Any,
    target: np.ndarray,
    counts: np.ndarray | None,
    what: str,
    declared: Mapping[str, int | None],
    within: tuple[float, float] | None = None,
) -> BatchProblem | None:
    """Refuse targets of columns that do not fit the output, or hold what they cannot.

    Args:
        outputs: the output by its shape, (N, L) or (N,).
        target: alike.
        counts: what the mask lets through; None is everything.
        what: what the columns are.
        declared: what says how many columns there are.
        within: the limits of a target; None where any finite one may be.
    """
    if len(outputs.shape) > 2 or target.ndim > 2:
        return BatchProblem(
            f"the output has the shape {list(outputs.shape)}, the target {list(target.shape)}",
            why=f"{what} are columns: (N, L), or (N,) for one",
        )
    width = outputs.shape[1] if len(outputs.shape) == 2 else 1
    found = width_problem(width, what, declared)
    if found is not None:
        return found
    if (target.shape[1] if target.ndim == 2 else 1) != width or target.dtype.kind not in "fiub":
        return BatchProblem(
            f"the target is {target.dtype}{list(target.shape)}, the output has {width} {what}",
            why="there is one number for each, NaN where there is none",
        )
    if target.dtype.kind == "b":
        return None
    if within is None:
        return _first(target, _shown(np.isinf(target), counts), why="a target is finite, NaN where there is none")
    low, high = within
    wrong = _shown((target < low) | (target > high), counts)
    return _first(target, wrong, why=f"a target lies in {low:g} to {high:g}, NaN where there is none")


def _shown(wrong: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
    """What is wrong and counts."""
    if counts is None:
        return wrong
    return wrong & counts.reshape(counts.shape + (1,) * (wrong.ndim - counts.ndim))


def _first(
    values: np.ndarray, wrong: np.ndarray, *, why: str, fix: str | None = None, what: str = "the target is"
) -> BatchProblem | None:
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = f" at {[int(i) for i in at[1:]]}" if len(at) > 1 else ""
    return BatchProblem(f"{what} {values[at]}{place}", int(at[0]), why=why, fix=fix)
