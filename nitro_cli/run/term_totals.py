"""The loss of a split whose loss is made of terms: totals over totals."""

from __future__ import annotations

from collections.abc import Mapping

from nitro_cli.errors import warn
from nitro_cli.experiment import Term

__all__ = ["TermTotals"]


class TermTotals:
    """Adds up the loss terms of a split's batches, in float64.

    Args:
        split: its name, for messages.
    """

    def __init__(self, split: str) -> None:
        self._split = split
        self._terms: dict[str, Term] = {}

    def add(self, terms: Mapping[str, Term]) -> None:
        """Add those of a batch, by name; reads them back from the device."""
        for name, term in terms.items():
            over, under = float(term.numerator), None if term.denominator is None else float(term.denominator)
            before = self._terms.get(name)
            if before is not None:
                over += before.numerator
                under = None if under is None else under + before.denominator
            self._terms[name] = Term(over, under, float(term.weight))

    def result(self) -> dict[str, float]:
        """The loss and its terms; a term of which all is masked is left out, the loss where none is left."""
        there = {name: term for name, term in self._terms.items() if term.denominator != 0}
        if self._terms and not there:
            warn(f"split {self._split!r} has no loss: every entry of every term is masked")
        if not there:
            return {}
        terms = {n: t.numerator if t.denominator is None else t.numerator / t.denominator for n, t in there.items()}
        return {"loss": sum(there[name].weight * value for name, value in terms.items()), **terms}
