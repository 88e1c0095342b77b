"""Outputs and targets of one column per label or value."""

from __future__ import annotations

from typing import Any

from nitro_cli.experiment import Term
from nitro_cli.metrics import library_of
from nitro_cli.tasks.entries import per_entry, spread_valid, widened

__all__ = ["columns_of", "weighed"]


def columns_of(output: Any, target: Any, mask: Any, valid: Any) -> tuple[Any, Any, Any]:
    """Outputs and targets as [N, L], and which entries count; the target is 0 where one does not.

    Args:
        output: [N, L], or [N] for one column.
        target: alike, NaN where there is none.
        mask: what counts, per sample or per entry, or None.
        valid: bool[N], False on padding, or None.
    """
    values = widened(output).reshape(output.shape[0], -1)
    wanted = widened(target).reshape(values.shape)
    xp = library_of(wanted)
    counts = spread_valid(~xp.isnan(wanted), None if mask is None else mask.reshape(mask.shape[0], -1), valid)
    return values, xp.where(counts, wanted, 0), counts


def weighed(each: Any, counts: Any, weight: Any) -> Term:
    """The mean of what counts, as a term.

    Args:
        each: f32[N, L].
        counts: bool[N, L].
        weight: f32[N], or None.
    """
    scale = counts.astype(each.dtype)
    if weight is not None:
        scale = scale * per_entry(weight.astype(each.dtype), counts.shape)
    return Term((scale * each).sum(), scale.sum())
