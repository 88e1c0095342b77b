"""`Term`: a part of a loss as the sum it is, beside what it is divided by."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Term"]


class Term(NamedTuple):
    """A loss term of one micro-batch, as sums, so that no way of cutting a batch changes the loss.

    For any micro-batches, padding, devices and processes the loss of an optimizer step is

        sum over terms of weight * (sum of numerators / sum of denominators)

    Attributes:
        numerator: what the term adds up to over the micro-batch, f32[].
        denominator: over how much, f32[], not differentiated; 0 where all is masked. None for a plain sum.
        weight: a factor; it may depend on Device fields, not on the batch or the parameters.
    """

    numerator: Any
    denominator: Any = None
    weight: Any = 1.0
