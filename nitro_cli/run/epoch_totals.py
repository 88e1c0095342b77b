"""What an epoch has summed up so far: its losses, its loss terms, its train metrics, and the steps it left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from nitro_cli.programs import Pair

__all__ = ["EpochTotals"]


class EpochTotals(NamedTuple):
    """The sums of the steps of an epoch that were taken, in float64.

    Attributes:
        loss_sum, loss_count: the losses of those steps, and how many they are.
        terms: of a loss made of terms each one's weighted numerators and its denominators.
        metrics: of each train metric totals and counts.
        skipped: steps that were not taken.
    """

    loss_sum: float = 0.0
    loss_count: int = 0
    terms: Mapping[str, Pair] = {}
    metrics: Mapping[str, Pair] = {}
    skipped: int = 0

    def taken(self, loss: float, terms: Mapping[str, Pair], metrics: Mapping[str, Pair]) -> EpochTotals:
        """With one more step that was taken."""
        return EpochTotals(
            self.loss_sum + loss,
            self.loss_count + 1,
            _added(self.terms, terms) if terms else self.terms,
            _added(self.metrics, metrics) if metrics else self.metrics,
            self.skipped,
        )

    def left_out(self) -> EpochTotals:
        """With one more step that was not taken."""
        return self._replace(skipped=self.skipped + 1)

    @property
    def mean_loss(self) -> float | None:
        """The training loss: totals over totals, of a scalar loss the mean over steps; None where none was taken."""
        if self.terms:
            shares = [over / under for over, under in self.terms.values() if under]
            return math.fsum(shares) if shares else None
        return self.loss_sum / self.loss_count if self.loss_count else None

    def row(self) -> dict[str, float | None]:
        """The train metrics of the epoch's row; None for one of which all was masked."""
        return {f"train/{name}": over / under if under else None for name, (over, under) in self.metrics.items()}


def _added(totals: Mapping[str, Pair], more: Mapping[str, Pair]) -> dict[str, Pair]:
    sums = dict(totals)
    for name, (over, under) in more.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = before[0] + over, before[1] + under
    return sums
