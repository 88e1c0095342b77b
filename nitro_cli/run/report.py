"""The setup report: what was decided before the first step, in bands of rows, for people and for the log."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nitro_cli.text import visible

__all__ = ["Band", "SetupReport"]


@dataclass(frozen=True)
class Band:
    """One titled table of the report: rows of column name to value."""

    title: str
    rows: tuple[Mapping[str, Any], ...]


@dataclass(repr=False)
class SetupReport:
    """Everything setup decided; grows while setup runs and while programs are compiled."""

    bands: list[Band] = field(default_factory=list)

    def add(self, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a band; an empty one is left out."""
        kept = tuple(dict(row) for row in rows)
        if kept:
            self.bands = [band for band in self.bands if band.title != title]
            self.bands.append(Band(title, kept))

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """The report as plain data, for run.json."""
        return {band.title: [{k: _plain(v) for k, v in row.items()} for row in band.rows] for band in self.bands}

    def __str__(self) -> str:
        parts: list[str] = []
        for band in self.bands:
            columns, cells = _table(band)
            widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
            parts.append(band.title)
            for line in [columns, *cells]:
                parts.append(
                    "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
                )
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(_html(band) for band in self.bands)


def _table(band: Band) -> tuple[list[str], list[list[str]]]:
    columns = list(dict.fromkeys(key for row in band.rows for key in row))
    return columns, [[_text(row.get(column)) for column in columns] for row in band.rows]


def _html(band: Band) -> str:
    columns, cells = _table(band)

    def row(tag: str, texts: list[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

    head, body = row("th", columns), "".join(row("td", texts) for texts in cells)
    return f"<table><caption>{html.escape(band.title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(str(value), keep="")
