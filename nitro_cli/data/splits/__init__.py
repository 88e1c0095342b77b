"""Splits: which rows train, which validate, which test, the same whatever the order of the rows."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .applied import AppliedSplit
    from .chronological import ChronologicalSplit
    from .group import GroupSplit
    from .saved import SavedSplit
    from .split_plan import SPLITS, SplitPlan, register_split
    from .stratified import StratifiedSplit
