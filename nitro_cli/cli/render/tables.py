"""Tables for people: aligned columns without borders, whole on a pipe and fitted to a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nitro_cli.text import visible

if TYPE_CHECKING:
    from rich.table import Table

_SKEW = 5.0
"""Seconds by which the clocks of machines that share a disk may differ without a word."""

__all__ = ["Bare", "age", "epochs_text", "number", "size", "table", "value_text"]


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    fold: Sequence[int] = (),
    title: str | None = None,
) -> Table:
    """A rich table of text cells.

    Args:
        columns: the headings.
        rows: cells; None shows as `-`.
        right: indices of columns aligned to the right.
        fold: indices of columns that give way first on a narrow terminal, wrapping onto further lines.
        title: a line above.
    """
    from rich.table import Table
    from rich.text import Text

    # As text, not strings, in which rich would read markup.
    above = "" if title is None else "\n" * (len(title) - len(title.lstrip("\n")))  # blank lines, asked for
    heading = None if title is None else Text(above + visible(title[len(above) :], keep=""), style="bold")
    made = Table(box=None, pad_edge=False, header_style="bold", title=heading, title_justify="left")
    for index, name in enumerate(columns):
        made.add_column(
            Text(visible(name, keep="")),
            justify="right" if index in right else "left",
            no_wrap=index not in fold,
            overflow="fold" if index in fold else "ellipsis",
        )
    for row in rows:
        shown = ("-" if cell is None else visible(str(cell), keep="") for cell in row)
        made.add_row(*map(Text, shown))
    return made


def number(value: Any, digits: int = 4) -> str:
    """A number with `digits` significant digits; text and non-finite numbers as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


class Bare(str):
    """Text that stands for a value and is shown without quotes, such as `float32[10]` for an array."""


def value_text(value: Any) -> str:
    """A configuration value in one line, as it could be written in TOML; None is `unset`."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Bare):
        return str(value)
    if isinstance(value, str):
        return f'"{visible(value, keep="")}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {value_text(item)}" for key, item in value.items()) + " }" if value else "{}"
    return str(value)


def age(written: float | None, now: float | None = None) -> str:
    """How long ago a Unix time was: `40 s ago`, `3 h ago`; one that a clock ahead wrote is `12 d ahead`."""
    if written is None:
        return "-"
    passed = (time.time() if now is None else now) - written
    seconds, way = abs(passed), "ago" if passed > -_SKEW else "ahead"
    if way == "ago":
        seconds = max(0.0, passed)
    for limit, unit, divisor in ((90, "s", 1), (5400, "min", 60), (129600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit} {way}"
    return f"{seconds / 86400:.0f} d {way}"


def epochs_text(epochs: Iterable[int]) -> str:
    """Epochs as runs of numbers: `1 4-6 20`."""
    parts: list[list[int]] = []
    for epoch in sorted(set(epochs)):
        if parts and epoch == parts[-1][1] + 1:
            parts[-1][1] = epoch
        else:
            parts.append([epoch, epoch])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def size(count: int) -> str:
    """Bytes as `812 B`, `4.1 MB`, `2.0 GB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
