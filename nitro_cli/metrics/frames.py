"""A history's scalar columns as frames of other libraries, and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import StorageError
from nitro_cli.installation import import_extra
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.metrics.epoch_rows import EpochRows

__all__ = ["to_arrow", "to_csv", "to_pandas", "to_polars"]


def _columns(history: EpochRows) -> dict[str, list[Any]]:
    rows = list(history)
    return {name: [row.get(name) for row in rows] for name in history.columns}


def to_pandas(history: EpochRows) -> Any:
    """The scalar columns as a pandas frame, NaN where an epoch lacks a metric."""
    pandas = import_extra("pandas", use="History.to_pandas")
    return pandas.DataFrame({name: history.column(name) for name in history.columns})


def to_polars(history: EpochRows) -> Any:
    """The scalar columns as a polars frame, null where an epoch lacks a metric."""
    polars = import_extra("polars", use="History.to_polars")
    return polars.DataFrame(_columns(history), strict=False)


def to_arrow(history: EpochRows) -> Any:
    """The scalar columns as an Arrow table, null where an epoch lacks a metric."""
    pyarrow = import_extra("pyarrow", use="History.to_arrow")
    columns = _columns(history)
    kinds = {
        n: pyarrow.float64() if any(isinstance(v, float) for v in c) else pyarrow.int64() for n, c in columns.items()
    }
    return pyarrow.table({n: pyarrow.array(c, type=kinds[n]) for n, c in columns.items()})


def to_csv(history: EpochRows, path: str | Path | None) -> str:
    """The scalar columns as CSV: numbers in full precision, `nan` and `inf` as such, nothing where one is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = history.columns
    writer.writerow(columns)
    for row in history:
        writer.writerow(["" if row.get(n) is None else repr(row[n]) for n in columns])
    if path is not None:
        try:
            user_path(path).write_text(text.getvalue(), encoding="utf-8")
        except OSError as err:
            raise StorageError(f"The history could not be written: {err.strerror}.", where=str(path)) from err
    return text.getvalue()
