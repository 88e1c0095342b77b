"""Which parameters weight decay reaches, by path, for the setup report."""

from __future__ import annotations

from typing import Any

from nitro_cli.optim.group_rule import GroupRule
from nitro_cli.optim.hyper_table import Hyper
from nitro_cli.optim.layout import ParamLayout

__all__ = ["decay_rows"]


def decay_rows(layout: ParamLayout, hyper: Hyper) -> list[dict[str, Any]]:
    """One row per trained parameter, with what it decays by; none where nothing decays, or in manual mode."""
    held = {group: _decay_of(group, rule, hyper) for group, rule in hyper.rules.items()}
    if not any(held.values()):
        return []
    rows = []
    for leaf in layout.trained:
        # A factory that decays by itself knows nothing of `no_decay`.
        reached = leaf.decays or hyper.rules[leaf.group].own_decay is not None
        by = held[leaf.group] if reached else None
        rows.append(
            {"parameter": leaf.text, "shape": str(list(leaf.shape)), "group": leaf.group, "decays by": by or "nothing"}
        )
    return rows


def _decay_of(group: str, rule: GroupRule, hyper: Hyper) -> str | None:
    if rule.own_decay:
        return f"the factory's own {rule.own_decay}"
    name = f"{group}/weight_decay"
    column = next(column for column in hyper.column_list if column.name == name)
    if column.key is not None:
        return f"the schedule {column.key}"
    value = column.source.constant
    return f"{value:g}" if value else None
