"""What one row of a history may hold as JSON: the schema in front of every reader of history.jsonl and of records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from nitro_cli.text.documents import Count, Document, Name, check_document

__all__ = ["HistoryRow", "check_row"]

_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64|96|128)|longdouble")


def _is_dtype(text: str) -> str:
    if not _DTYPE.fullmatch(text):
        raise PydanticCustomError("dtype", "Input should be the dtype of real numbers")
    return text


class MonitorFacts(Document):
    """The monitor in an epoch; the value is null where it is missing or not finite."""

    value: int | float | None
    status: Literal["ok", "missing", "nonfinite"]
    improved: bool


class HistoryRow(Document):
    """One row as `encode_row` gives it: a metric is a number, nested lists of numbers named in `arrays`, or null."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int | float | list[Any] | None] = Field(init=False)

    epoch: Count
    step: Count
    monitor: MonitorFacts | None = None
    nonfinite: dict[Name, Literal["nan", "inf", "-inf"]] = Field(default_factory=dict)
    arrays: dict[Name, Annotated[str, AfterValidator(_is_dtype)]] = Field(default_factory=dict)


def check_row(obj: Any, place: Path | str) -> HistoryRow:
    """Check a row as it lies in a file.

    Args:
        obj: what `parse_json` gave.
        place: file and line, for the error.

    Raises:
        IntegrityError: it does not fit.
    """
    return check_document(HistoryRow, obj, place, what=f"{place}, is not a history row")
