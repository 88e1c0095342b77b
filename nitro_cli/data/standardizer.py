"""Columns to mean 0 and deviation 1, by what the training rows say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import PreprocessingError
from nitro_cli.text.canonical import canonical_digest

__all__ = ["Standardizer"]

_FORMAT = 1


@dataclass(frozen=True)
class Standardizer:
    """`(x - mean) / scale` per column: mean and population deviation of the rows that it was fitted on.

    A column of one value has that value as its mean and the scale 1.

    Attributes:
        mean, scale: one number per column.
        columns: their names, None where the table has none.
        dtype: of what `transform` returns.
        rows: on how many rows it was fitted.
        membership: what these rows are, such as the digest of a split; None where nobody said.

    Raises:
        PreprocessingError: lengths differ, a number is not finite, a scale is not above 0, or the dtype is no float.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    columns: tuple[str, ...] | None = None
    dtype: str = "float32"
    rows: int = 0
    membership: str | None = None

    def __post_init__(self) -> None:
        problem = None
        if len(self.mean) != len(self.scale) or not self.mean:
            problem = f"{len(self.mean)} means and {len(self.scale)} scales"
        elif self.columns is not None and len(self.columns) != len(self.mean):
            problem = f"{len(self.columns)} columns and {len(self.mean)} means"
        elif not all(map(math.isfinite, (*self.mean, *self.scale))):
            problem = "a mean or a scale is not finite"
        elif min(self.scale) <= 0:
            problem = f"the scale {min(self.scale)} is not above 0"
        if problem is not None:
            raise PreprocessingError(f"this is no state of a Standardizer: {problem}", where="Standardizer")
        _float_dtype(self.dtype)

    @classmethod
    def fit(
        cls,
        table: Any,
        *,
        rows: Iterable[int] | None,
        columns: Sequence[str] | None = None,
        dtype: str = "float32",
        membership: str | None = None,
    ) -> Standardizer:
        """Take mean and deviation of some rows, in float64.

        Args:
            table: a frame, a mapping of columns, a 2-D array, or a sequence of rows.
            rows: the rows to look at, by position; no other is read. None is all of them.
            columns: the columns to take, by name, of a table that has names.
            dtype: of what `transform` returns.
            membership: what the rows are, for the record.

        Raises:
            PreprocessingError: there is no such column or row, or a value is no finite number.
        """
        picked = None if rows is None else _positions(rows, "Standardizer.fit")
        if len(table if picked is None else picked) == 0:
            raise PreprocessingError("there are no rows to fit on", where="Standardizer.fit(rows=)")
        names, x = _matrix(table, columns, picked, "Standardizer.fit")
        low, high = x.min(axis=0), x.max(axis=0)
        same = low == high
        # Rounding gives a column of one value a deviation above 0: that of three 0.1 would be 1.4e-17.
        mean = np.where(same, low, x.mean(axis=0))
        scale = np.where(same, 1.0, np.sqrt(np.square(x - mean).mean(axis=0)))
        bad = ~(np.isfinite(mean) & np.isfinite(scale) & (scale > 0))
        if bad.any():
            raise PreprocessingError(
                f"mean or deviation of {_told(names, bad)} cannot be held in float64",
                where="Standardizer.fit",
                fix="scale the columns before",
            )
        columns_found = None if names is None else tuple(names)
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), columns_found, dtype, len(x), membership)

    def transform(self, table: Any) -> np.ndarray:
        """The table standardized: a new array (rows, columns) of `dtype`.

        Raises:
            PreprocessingError: other columns, another order or number of them, or a value that is not finite, or whose
                result `dtype` cannot hold.
        """
        where = "Standardizer.transform"
        names, x = _matrix(table, None, None, where)
        if names is not None and self.columns is not None and tuple(names) != self.columns:
            missing, unknown = set(self.columns) - set(names), set(names) - set(self.columns)
            told = [f"missing: {', '.join(sorted(missing))}"] if missing else []
            told += [f"unexpected: {', '.join(sorted(unknown))}"] if unknown else []
            raise PreprocessingError(
                f"the columns are not those it was fitted on; {'; '.join(told) or 'they are in another order'}",
                where=where,
                fix=f"give the columns {', '.join(self.columns)}",
            )
        if x.shape[1] != len(self.mean):
            raise PreprocessingError(f"{x.shape[1]} columns, and it was fitted on {len(self.mean)}", where=where)
        with np.errstate(over="ignore"):
            found: np.ndarray = ((x - np.asarray(self.mean)) / np.asarray(self.scale)).astype(self.dtype)
        bad = ~np.isfinite(found).all(axis=0)
        if bad.any():
            raise PreprocessingError(f"a result in {_told(self.columns, bad)} overflows {self.dtype}", where=where)
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """`mean` and `scale` of `dtype`, (columns,): for Device fields, by `derive`.

        Raises:
            PreprocessingError: `dtype` cannot hold them.
        """
        found = {name: np.asarray(getattr(self, name), self.dtype) for name in ("mean", "scale")}
        bad = ~np.isfinite(found["mean"]) | ~np.isfinite(found["scale"]) | (found["scale"] == 0)
        if bad.any():
            raise PreprocessingError(f"{self.dtype} cannot hold mean or scale of {_told(self.columns, bad)}")
        return found

    def traced(self, x: Any) -> Any:
        """`x` (..., columns) standardized inside a program, such as in `export_preprocess`."""
        held = self.arrays()
        return (x - held["mean"]) / held["scale"]

    def document(self) -> dict[str, Any]:
        """The state as plain data; `Standardizer.of` reads it."""
        columns = None if self.columns is None else list(self.columns)
        numbers = {"mean": list(self.mean), "scale": list(self.scale)}
        return {"format": _FORMAT, **numbers, "columns": columns, "dtype": self.dtype, **self._fitted()}

    def identity(self) -> str:
        """The digest of the state."""
        return canonical_digest(self.document())

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Standardizer:
        """The standardizer of a document.

        Raises:
            PreprocessingError: it is none.
        """
        wanted = {"format", "mean", "scale", "columns", "dtype", "rows", "membership"}
        if not isinstance(document, Mapping) or document.keys() != wanted or document["format"] != _FORMAT:
            raise PreprocessingError("this is no document of a Standardizer", where="Standardizer.of")
        numbers = [document[name] for name in ("mean", "scale")]
        if not all(isinstance(held, list) and all(type(x) in (int, float) for x in held) for held in numbers):
            raise PreprocessingError("mean and scale are lists of numbers", where="Standardizer.of")
        mean, scale = (tuple(map(float, held)) for held in numbers)
        columns = None if document["columns"] is None else tuple(document["columns"])
        return cls(mean, scale, columns, document["dtype"], document["rows"], document["membership"])

    def _fitted(self) -> dict[str, Any]:
        return {"rows": self.rows, "membership": self.membership}


def _float_dtype(dtype: Any) -> None:
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        kind = "?"
    if kind != "f":
        raise PreprocessingError(f"`dtype` is {dtype!r}", where="Standardizer", fix="use float32 or float64")


def _matrix(
    table: Any, columns: Sequence[str] | None, picked: np.ndarray | None, where: str
) -> tuple[list[str] | None, np.ndarray]:
    """The names of the columns, None where there are none, and the values of some rows, float64 (rows, columns)."""
    names = _names(table)
    if columns is not None:
        lacking = list(columns) if names is None else [name for name in columns if name not in names]
        if lacking:
            there = "the table has no names" if names is None else f"there are: {', '.join(names)}"
            raise PreprocessingError(f"there is no column {', '.join(map(repr, lacking))}", where=where, why=there)
        names = list(columns)
    if names is not None:
        held = [_picked(np.asarray(table[name]), picked, name, where) for name in names]
        if len({len(column) for column in held}) > 1 or any(column.ndim != 1 for column in held):
            raise PreprocessingError("the columns are not one value per row each", where=where)
        return names, _finite(np.stack(held, axis=1) if held else np.empty((0, 0)), names, where)
    if not hasattr(table, "shape") and isinstance(table, Sequence) and picked is not None:
        outside = picked[(picked < 0) | (picked >= len(table))]
        if len(outside):
            raise PreprocessingError(f"there is no row {outside[0]}", where=where, why=f"there are {len(table)}")
        table, picked = [table[row] for row in picked.tolist()], None  # no other row is even looked at
    x = _picked(np.asarray(table), picked, None, where)
    if x.ndim != 2:
        raise PreprocessingError(f"the table has the shape {list(x.shape)}, not rows and columns", where=where)
    return None, _finite(x, None, where)


def _names(table: Any) -> list[str] | None:
    if isinstance(table, Mapping):
        return list(table)
    named = getattr(table, "column_names", getattr(table, "columns", None))
    return None if named is None else list(named)


def _positions(rows: Iterable[int], where: str) -> np.ndarray:
    held = np.asarray(list(rows) if not isinstance(rows, np.ndarray) else rows)
    if held.ndim != 1 or (len(held) and held.dtype.kind not in "iu"):
        raise PreprocessingError("`rows` are positions, whole numbers", where=where)
    return held.astype(np.int64)


def _picked(values: np.ndarray, rows: np.ndarray | None, name: str | None, where: str) -> np.ndarray:
    if rows is not None:
        outside = rows[(rows < 0) | (rows >= len(values))]
        if len(outside):
            raise PreprocessingError(f"there is no row {outside[0]}", where=where, why=f"there are {len(values)}")
        values = values[rows]
    if values.dtype.kind not in "biuf":
        what = "the table" if name is None else f"the column {name!r}"
        raise PreprocessingError(f"{what} holds {values.dtype}, no numbers", where=where)
    return values.astype(np.float64)


def _finite(x: np.ndarray, names: Sequence[str] | None, where: str) -> np.ndarray:
    bad = ~np.isfinite(x).all(axis=0)
    if bad.any():
        row = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise PreprocessingError(f"a value in {_told(names, bad)} is not finite", where=f"{where}, row {row} of them")
    return x


def _told(names: Sequence[str] | None, bad: np.ndarray) -> str:
    found = np.flatnonzero(bad).tolist()
    named = [repr(names[at]) if names is not None else str(at) for at in found]
    return f"column{'s' * (len(named) > 1)} {', '.join(named)}"
