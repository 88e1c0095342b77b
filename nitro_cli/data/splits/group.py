"""Whole groups to splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from nitro_cli.data.splits.applied import AppliedSplit, applied_split
from nitro_cli.data.splits.row_keys import RowKeys, seeded_order, told_ids
from nitro_cli.data.splits.split_plan import ProportionalPlan, register_split
from nitro_cli.errors import SplitError

__all__ = ["GroupSplit"]


@register_split("group")
class GroupSplit(ProportionalPlan):
    """Rows of one group stay together; without groups each row is one.

    In the order that the seed gives, each group goes to the split that is farthest below its share of the rows. A split
    that is left without one takes the last of the split that has the most.
    """

    takes: ClassVar[tuple[str, ...]] = ("groups",)

    by: str | None = None
    """The column of a table that holds the groups."""

    def planned(self, keys: RowKeys, columns: Mapping[str, list[Any]]) -> AppliedSplit:
        """Put groups to splits; arguments as of `SplitPlan.planned`."""
        shares, seed = self.shares, self.seed_or_drawn()
        groups = columns.get("groups", list(keys.ids))
        members: dict[Any, list[int]] = {}
        for row, group in enumerate(groups):
            if type(group) not in (str, int):
                kind = type(group).__name__
                raise SplitError(
                    f"the group of id {keys.ids[row]!r} is {group!r}, {kind}",
                    where="split, groups",
                    fix="use text or whole numbers",
                )
            members.setdefault(group, []).append(row)
        if len(members) < len(shares):
            raise SplitError(
                f"{len(members)} group{'s' * (len(members) != 1)} for {len(shares)} splits: {told_ids(list(members))}",
                where="split, groups",
                why="a group is never divided",
                fix="leave a split out: a proportion of 0",
            )
        held: dict[str, list[Any]] = {name: [] for name in shares}
        rows = dict.fromkeys(shares, 0)
        for group in seeded_order(seed, members):
            name = max(shares, key=lambda split: shares[split] * len(groups) - rows[split])
            held[name].append(group)
            rows[name] += len(members[group])
        for name in held:
            if not held[name]:
                held[name].append(held[max(held, key=lambda other: len(held[other]))].pop())
        of_group = {group: name for name, found in held.items() for group in found}
        return applied_split(self.strategy(seed), keys, [of_group[group] for group in groups])
