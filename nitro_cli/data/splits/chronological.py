"""The past trains, the future tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.data.splits.applied import EXCLUDED, AppliedSplit, applied_split
from nitro_cli.data.splits.row_keys import RowKeys, told_ids
from nitro_cli.data.splits.split_plan import SplitPlan, register_split
from nitro_cli.errors import SplitError

__all__ = ["ChronologicalSplit"]

Cutoff = float | str


@register_split("chronological")
class ChronologicalSplit(SplitPlan):
    """Rows before the start of val train, those before the start of test validate, the others test.

    Times are numbers, or dates as ISO text or Python's, in which case cutoffs are ISO text and the gap counts days.
    """

    takes: ClassVar[tuple[str, ...]] = ("times",)

    cutoffs: tuple[Cutoff | None, Cutoff | None]
    """The starts of val and of test; one may be absent: None, or "" in TOML."""

    gap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Rows in `cutoff - gap <= time < cutoff` are left out, so that windows of the past do not reach over a cutoff."""

    by: str | None = None
    """The column of a table that holds the times."""

    @model_validator(mode="after")
    def _check_cutoffs(self) -> Self:
        told = None
        present = self.starts
        try:
            read: list[Any] = [_time(cutoff) for _, cutoff in present]
            if not present:
                told = "cutoffs: both are absent"
            elif len({_kind(cutoff) for cutoff in read}) > 1:
                told = f"cutoffs are numbers or dates, got {list(self.cutoffs)}"
            elif len(read) == 2 and not read[0] < read[1]:
                told = f"cutoffs: val starts at {present[0][1]!r}, which is not before test at {present[1][1]!r}"
        except ValueError:
            told = f"cutoffs are numbers or ISO dates, got {list(self.cutoffs)}"
        if told is not None:
            raise PydanticCustomError("split", "{told}", {"told": told})
        return self

    @property
    def starts(self) -> list[tuple[str, Cutoff]]:
        """The splits that begin at a cutoff, each with it."""
        named = zip(("val", "test"), self.cutoffs, strict=True)
        return [(name, cutoff) for name, cutoff in named if cutoff is not None and cutoff != ""]

    def planned(self, keys: RowKeys, columns: Mapping[str, list[Any]]) -> AppliedSplit:
        """Put rows to splits by their times; arguments as of `SplitPlan.planned`."""
        if "times" not in columns:
            raise SplitError(
                "a chronological split goes by times, and there are none",
                where="split.apply(times=)",
                fix='give times=, or of a table name the column: by = "date"',
            )
        times = _times(keys, columns["times"])
        starts = [(name, _time(cutoff)) for name, cutoff in self.starts]
        if _kind(times[0]) != _kind(starts[0][1]):
            raise SplitError(
                f"the cutoffs are {list(self.cutoffs)}, and a time is {columns['times'][0]!r}",
                where="split, cutoffs",
                fix="write cutoffs as the times are: numbers, or ISO dates",
            )
        gap: Any = timedelta(days=self.gap) if isinstance(times[0], datetime) else self.gap
        of_row = []
        for time in times:
            name = "train"
            for split, start in starts:
                if start - gap <= time < start:
                    name = EXCLUDED
                    break
                name = split if time >= start else name
            of_row.append(name)
        for split, start in starts:
            if split not in of_row:
                raise SplitError(f"no row is left for {split}, which starts at {start}", where="split, cutoffs")
        return applied_split(self.strategy(), keys, of_row)


def _times(keys: RowKeys, values: list[Any]) -> list[Any]:
    read: list[Any] = []
    for id, value in zip(keys.ids, values, strict=True):
        try:
            read.append(_time(value))
        except ValueError:
            raise SplitError(
                f"the time of id {id!r} is {value!r}",
                where="split, times",
                fix="use numbers or ISO dates",
            ) from None
    if any(_kind(time) != _kind(read[0]) for time in read):
        odd = [id for id, time in zip(keys.ids, read, strict=True) if _kind(time) != _kind(read[0])]
        raise SplitError(f"times are of several types, from id {told_ids(odd)} on", where="split, times")
    return read


def _time(value: Any) -> float | datetime:
    """A time that compares with others of its type.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _kind(time: float | datetime) -> str:
    """Times of one kind compare."""
    if isinstance(time, datetime):
        return "date" if time.tzinfo is None else "date in a time zone"
    return "number"
