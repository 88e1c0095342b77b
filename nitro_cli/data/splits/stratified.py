"""The same shares of every class."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

from nitro_cli.data.splits.applied import AppliedSplit, applied_split
from nitro_cli.data.splits.row_keys import RowKeys, seeded_order
from nitro_cli.data.splits.split_plan import ProportionalPlan, register_split
from nitro_cli.errors import SplitError

__all__ = ["StratifiedSplit"]


@register_split("stratified")
class StratifiedSplit(ProportionalPlan):
    """The same shares of every class, by largest remainder; without labels, of all rows.

    Raises:
        SplitError: on `apply`, a class has fewer rows than there are splits and `insufficient` is `refuse`.
    """

    takes: ClassVar[tuple[str, ...]] = ("labels",)

    insufficient: Literal["refuse", "train"] = "refuse"
    """What becomes of a class with fewer rows than splits: it is refused, or it trains."""

    def planned(self, keys: RowKeys, columns: Mapping[str, list[Any]]) -> AppliedSplit:
        """Put rows to splits, class by class; arguments as of `SplitPlan.planned`."""
        shares, seed = self.shares, self.seed_or_drawn()
        labels = columns.get("labels") or [0] * len(keys.ids)
        place = {id: row for row, id in enumerate(keys.ids)}
        classes: dict[Any, list[Any]] = {}
        for id in seeded_order(seed, keys.ids):
            classes.setdefault(labels[place[id]], []).append(id)
        scarce = {label: ids for label, ids in classes.items() if len(ids) < len(shares)}
        if scarce and self.insufficient == "refuse":
            label, ids = min(scarce.items(), key=lambda item: str(item[0]))
            raise SplitError(
                f"the class {label!r} has {len(ids)} row{'s' * (len(ids) != 1)} for {len(shares)} splits",
                where=f"split, ids {', '.join(map(repr, ids))}",
                fix='leave a split out (a proportion of 0), or let such classes train: insufficient = "train"',
            )
        of_row = ["train"] * len(keys.ids)
        for label, ids in classes.items():
            counts = {"train": len(ids)} if label in scarce else apportioned(len(ids), shares)
            at = 0
            for name, count in counts.items():
                for id in ids[at : at + count]:
                    of_row[place[id]] = name
                at += count
        return applied_split(self.strategy(seed), keys, of_row)


def apportioned(rows: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """How many of some rows each split gets: by largest remainder, ties to the first; none stays empty.

    Args:
        rows: how many there are, no fewer than splits.
        shares: the share of each split, which sum to 1.
    """
    exact = {name: rows * share for name, share in shares.items()}
    counts = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[: rows - sum(counts.values())]:
        counts[name] += 1
    for name in counts:
        if not counts[name]:
            counts[max(counts, key=lambda other: counts[other])] -= 1
            counts[name] = 1
    return counts
