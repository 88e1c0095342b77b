"""What rows are called, and the order that a seed gives to names, on any machine and for any order of the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import SplitError
from nitro_cli.text.canonical import canonical

__all__ = ["RowKeys", "column_values", "seeded_order", "told_ids"]

_TOLD = 5


@dataclass(frozen=True)
class RowKeys:
    """The names of the rows of a source.

    Attributes:
        ids: one per row, all text or all whole numbers; positions where the rows have none.
        id_type: `text`, `int` or `position`.
        source: what the rows are of, or None.
    """

    ids: tuple[Any, ...]
    id_type: str
    source: str | None

    @classmethod
    def of(cls, ids: Any, count: int | None, source: str | None) -> RowKeys:
        """Check ids, or number the rows where there are none.

        Args:
            ids: one per row, or None.
            count: how many rows there are, where something else says it.
            source: what the rows are of; positions need it.

        Raises:
            SplitError: ids are missing, doubled or of no one type, or positions have no source.
        """
        where = "split.apply(ids=, source=)"
        if source is not None and (not isinstance(source, str) or not source):
            raise SplitError(f"`source` is {source!r}", where=where, fix="give a text that names the data")
        if ids is None:
            if source is None:
                raise SplitError(
                    "the rows have no ids, and `source` does not say what they are of",
                    where=where,
                    why="a position means a row of that source alone",
                    fix="give ids=, or source= with a name or digest of the data",
                )
            if count is None:
                raise SplitError(
                    "nothing says how many rows there are", where=where, fix="give ids=, labels= or times="
                )
            return cls(tuple(range(count)), "position", source)
        held = column_values(ids, "ids")
        if count is not None and len(held) != count:
            raise SplitError(f"there are {len(held)} ids for {count} rows", where=where)
        kinds = {type(id) for id in held}
        if not held or kinds not in ({str}, {int}):
            named = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
            raise SplitError(f"ids are text or whole numbers, all of one type; these are: {named}", where=where)
        if len(set(held)) < len(held):
            seen: set[Any] = set()
            twice = [id for id in held if id in seen or seen.add(id)]  # type: ignore[func-returns-value]
            raise SplitError(f"ids stand more than once: {told_ids(twice)}", where=where, why="an id names one row")
        return cls(tuple(held), "text" if kinds == {str} else "int", source)


def column_values(values: Any, name: str) -> list[Any]:
    """A column as Python values: text, whole numbers, floats, bools.

    Raises:
        SplitError: it is no column.
    """
    array = np.asarray(values) if not isinstance(values, list | tuple) else None
    if array is not None and array.ndim != 1:
        raise SplitError(f"`{name}` has the shape {list(array.shape)}, not one value per row", where=f"split, {name}")
    if array is not None and array.dtype.kind == "M":
        array = array.astype("datetime64[us]")  # finer ones are whole numbers in Python
    held = list(values) if array is None else array.tolist()
    return [value.item() if isinstance(value, np.generic) else value for value in held]


def seeded_order(seed: int, keys: Iterable[Any]) -> list[Any]:
    """Distinct keys in the order of the SHA-256 of `canonical([seed, key])`."""
    return sorted(keys, key=lambda key: hashlib.sha256(canonical([seed, key])).digest())


def told_ids(ids: Sequence[Any]) -> str:
    """The first ids, for errors."""
    more = f" and {len(ids) - _TOLD} more" if len(ids) > _TOLD else ""
    return ", ".join(map(repr, ids[:_TOLD])) + more
