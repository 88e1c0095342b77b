"""The family of split plans, and what planning by shares has in common."""

from __future__ import annotations

import math
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.data.splits.applied import SPLIT_NAMES, AppliedSplit
from nitro_cli.data.splits.row_keys import RowKeys, column_values
from nitro_cli.errors import SplitError
from nitro_cli.experiment import FieldKind, Part
from nitro_cli.text import Catalogue

__all__ = ["SPLITS", "ProportionalPlan", "SplitPlan", "register_split"]

_NEAR = 1e-9

SPLITS: Catalogue[type[SplitPlan]] = Catalogue(
    "split",
    "nitro.splits",
    key="strategy",
    shipped={
        "stratified": "nitro_cli.data.splits.stratified:StratifiedSplit",
        "group": "nitro_cli.data.splits.group:GroupSplit",
        "chronological": "nitro_cli.data.splits.chronological:ChronologicalSplit",
        "saved": "nitro_cli.data.splits.saved:SavedSplit",
    },
)
"""The split plans by (id, version): nitro's own, those of `register_split`, and those of the entry points
`nitro.splits`."""


class SplitPlan(Part):
    """Says which rows train, validate and test. A field of this type of an experiment reaches its data set.

    In TOML it is a table with its `strategy`; `{ file = "split.json" }` replays a saved one.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = SPLITS
    unmarked: ClassVar[FieldKind] = FieldKind.HOST
    on_host: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ()
    """What of `groups`, `labels` and `times` it goes by."""

    @property
    def column(self) -> str | None:
        """The column of a table that it goes by, where it names one."""
        return getattr(self, "by", None)

    def apply(
        self, ids: Any = None, *, groups: Any = None, labels: Any = None, times: Any = None, source: str | None = None
    ) -> AppliedSplit:
        """Put every row to a split.

        Args:
            ids: text or whole numbers, one per row, all different; without them positions are planned.
            groups: the group of each row, text or whole numbers: rows of one group stay together.
            labels: the class of each row.
            times: the time of each row: numbers, dates or ISO text, anything that compares.
            source: what the rows are of, a name or a digest; needed without ids.

        Returns:
            The rows of each split.

        Raises:
            SplitError: the rows cannot be split so, or an argument is given that this plan does not go by.
        """
        given = {"groups": groups, "labels": labels, "times": times}
        columns = {name: column_values(value, name) for name, value in given.items() if value is not None}
        unused = [name for name in columns if name not in self.takes]
        if unused:
            raise SplitError(
                f"a {self.label} split does not go by {' or '.join(unused)}",
                where=f"split.apply({unused[0]}=)",
                fix=f"leave {unused[0]}= out" + (f", or give {', '.join(self.takes)}=" if self.takes else ""),
            )
        sizes = {name: len(values) for name, values in columns.items()}
        if ids is not None:
            sizes = {"ids": len(ids), **sizes}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{size} {name}" for name, size in sizes.items())
            raise SplitError(f"the rows are told apart in number: {told}", where="split.apply")
        keys = RowKeys.of(ids, next(iter(sizes.values()), None), source)
        return self.planned(keys, columns)

    def for_rows(self, count: int, ids: Any, column: Any, labels: Any, source: str) -> AppliedSplit:
        """As a data set applies it.

        Args:
            count: how many rows there are.
            ids: their ids, or None.
            column: the values of `column`, or None.
            labels: the class of each row; None for a set without classes.
            source: the identity of the data.
        """
        given = {"labels": labels} if column is None else {self.takes[0]: column}
        columns = {name: column_values(value, name) for name, value in given.items() if value is not None}
        keys = RowKeys.of(ids, count, source if ids is None else None)
        return self.planned(keys, {name: values for name, values in columns.items() if name in self.takes})

    @abstractmethod
    def planned(self, keys: RowKeys, columns: Mapping[str, list[Any]]) -> AppliedSplit:
        """Put rows to splits.

        Args:
            keys: their names.
            columns: of what it `takes`, what was given, one value per row.
        """

    def strategy(self, seed: int | None = None) -> dict[str, Any]:
        """The plan as plain data, with the seed that holds."""
        named = self.identity() or {"strategy": self.label}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        held = named | {name: value for name, value in fields.items() if value is not None}
        return held | ({} if seed is None else {"seed": seed})

    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, Mapping) and "file" in value and "strategy" not in value:
            value = {**value, "strategy": "saved"}
        return super()._read(value, handler)


class ProportionalPlan(SplitPlan):
    """A split plan by shares of the rows, in an order that a seed gives."""

    proportions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    """The shares of train, val and test, which sum to 1; 0 is no such split."""

    seed: Annotated[int, Field(ge=0)] | None = None
    """The seed of the order. Unset, a data set takes the run's, and `apply` draws one, which the manifest has."""

    @model_validator(mode="after")
    def _check_proportions(self) -> Self:
        shares = self.proportions
        if not all(math.isfinite(share) and 0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > _NEAR:
            told = f"proportions are shares from 0 to 1 that sum to 1, got {list(shares)}"
            raise PydanticCustomError("split", "{told}", {"told": told})
        if shares[0] == 0:
            raise PydanticCustomError("split", "{told}", {"told": "proportions: train has the share 0"})
        return self

    @property
    def shares(self) -> dict[str, Fraction]:
        """The shares above 0, exact as they are written."""
        exact = (Fraction(repr(float(share))) for share in self.proportions)
        return {name: share for name, share in zip(SPLIT_NAMES, exact, strict=True) if share}

    def seed_or_drawn(self) -> int:
        """The seed, drawn where there is none."""
        return self.seed if self.seed is not None else secrets.randbits(32)


register_split = SPLITS.register
"""`@register_split(id, version=1)`: a class decorator that makes a split plan known as `{ strategy = id }`."""
