"""A history as a table: for the terminal, for notebooks, as plain text."""

from __future__ import annotations

import html
import io
import math
import shutil
from typing import TYPE_CHECKING, Any

from nitro_cli.metrics.thinning import thin_rows
from nitro_cli.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from nitro_cli.metrics.epoch_rows import EpochRows

__all__ = ["history_html", "history_text", "render_history"]

_PROMPT_LINES = 2
# Heading, blank, column names, rule; a blank below the rows.
_FRAME_LINES = 5


def render_history(history: EpochRows, console: Console, options: ConsoleOptions) -> RenderResult:
    """Yield the renderables of a history, thinned to the height of a terminal and fitted to its width."""
    from rich.text import Text

    if not history:
        yield Text(f"{_heading(history, 0)}: no epoch yet")
        return
    best = history.best_index
    names, dropped = _fit(history, best, options.max_width)
    notes = _notes(history, best, dropped)
    shown: list[int | None] = list(range(len(history)))
    if console.is_terminal:
        height = (options.height or console.size.height) - _PROMPT_LINES - _FRAME_LINES
        lines = sum(-(-(len(note) + 2) // options.max_width) for note in notes)
        if len(history) > height - lines:
            shown = thin_rows(len(history), best, height - lines - 1)
    kept = sum(row is not None for row in shown)
    if kept < len(history):
        notes.append(f"{len(history) - kept} of {len(history)} epochs thinned to fit; select fewer for every row")
    yield Text(_heading(history, kept), style="bold", overflow="ellipsis", no_wrap=True)
    yield _grid(names, _cells(history, names), shown, best, rule="-" if options.ascii_only else "\u2500")
    for note in notes:
        yield Text(f"  {note}", style="dim")


def _grid(
    names: list[str], cells: dict[str, list[str]], shown: list[int | None], best: int | None, *, rule: str
) -> Text:
    """Header, rule and rows as one text: a rich table takes a second for a thousand rows."""
    from rich.text import Text

    heads = {name: visible(name, keep="") for name in names}
    widths = [max(len(heads[name]), *map(len, cells[name])) for name in names]
    starred = best is not None

    def line(values: list[str], star: str) -> str:
        columns = [value.rjust(width) for value, width in zip(values, widths, strict=True)]
        return "  " + "   ".join([*columns, star] if starred else columns)

    text = Text("\n" + line(list(heads.values()), " ") + "\n", no_wrap=True, overflow="ignore", style="")
    text.stylize("bold")
    text.append(" " + rule * (_width(widths, starred) - 2) + "\n")
    for row in shown:
        if row is None:
            text.append(line([":" if rule == "-" else "\u22ee"] * len(names), " ") + "\n", style="dim")
        else:
            values = [cells[name][row] for name in names]
            text.append(line(values, "*" if row == best else " ") + "\n", style="bold" if row == best else None)
    return text


def history_text(history: EpochRows) -> str:
    """The table as text without control codes, thinned and fitted to the terminal there is."""
    from rich.console import Console

    size = shutil.get_terminal_size((100, 40))
    out = io.StringIO()
    console = Console(
        file=out,
        width=size.columns,
        height=size.lines,
        force_terminal=True,
        force_jupyter=False,
        color_system=None,
        legacy_windows=False,
    )
    console.print(history)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def history_html(history: EpochRows) -> str:
    """The table as HTML with every row and column."""
    if not history:
        return f"<p>{html.escape(_heading(history, 0))}: no epoch yet</p>"
    names = list(history.columns)
    best = history.best_index
    cells = _cells(history, names)
    head = "".join(f"<th>{html.escape(visible(n, keep=''))}</th>" for n in names)
    body = []
    for i in range(len(history)):
        style = ' style="font-weight:bold"' if i == best else ""
        star = "<td>★</td>" if i == best else "<td></td>"
        body.append(f"<tr{style}>{''.join(f'<td>{cells[n][i]}</td>' for n in names)}{star}</tr>")
    notes = "".join(f"<div>{html.escape(note)}</div>" for note in _notes(history, best, []))
    return (
        f'<table style="text-align:right"><caption>{html.escape(_heading(history, len(history)))}</caption>'
        f"<thead><tr>{head}<th></th></tr></thead><tbody>{''.join(body)}</tbody></table>{notes}"
    )


def _heading(history: EpochRows, kept: int) -> str:
    what = f"history of {visible(history.title, keep='')}" if history.title else "history"
    place = visible(history.place, keep="") if history.place else history.place
    count = f"{kept} of {len(history)} epochs" if kept < len(history) else f"{kept} epoch{'' if kept == 1 else 's'}"
    if not history:
        return f"{what} ({place})" if place else what
    return f"{what}  ({place}, {count})" if place else f"{what}  ({count})"


def _notes(history: EpochRows, best: int | None, dropped: list[str]) -> list[str]:
    notes = []
    if best is not None and history.monitor is not None:
        name, mode = history.monitor
        notes.append(f"* best {name} ({mode})")
    if history.arrays:
        notes.append(f"not tabulated: {', '.join(history.arrays)}; each is a column of the history")
    if dropped:
        some = ", ".join(dropped[:8]) + (", ..." if len(dropped) > 8 else "")
        columns = "column" if len(dropped) == 1 else "columns"
        notes.append(f"{len(dropped)} {columns} left out for width: {some}; select metrics by name to see them")
    if history.note:
        notes.append(history.note)
    return [visible(note, keep="") for note in notes]


def _fit(history: EpochRows, best: int | None, width: int) -> tuple[list[str], list[str]]:
    """Return the columns that fit and those dropped from the right, epoch and the monitored metric last of all."""
    names = list(history.columns)
    widths = {n: max(len(visible(n, keep="")), *map(len, c)) for n, c in _cells(history, names).items()}
    first = {"epoch", "step", "train_loss", *([history.monitor[0]] if history.monitor else [])}
    keep_longest = ["epoch", *([history.monitor[0]] if history.monitor else []), "train_loss", "step"]
    order = [n for n in reversed(names) if n not in first]
    order += [n for n in reversed(keep_longest) if n in names and n != "epoch"]
    dropped: list[str] = []
    while order and _width([widths[n] for n in names], best is not None) > width:
        dropped.append(order.pop(0))
        names.remove(dropped[-1])
    return names, dropped[::-1]


def _width(widths: list[int], starred: bool) -> int:
    columns = [*widths, 1] if starred else widths
    # SIMPLE_HEAD: one blank at each edge, one between columns, and padding 1 on both sides of a cell.
    return sum(w + 2 for w in columns) + (len(columns) - 1) + 2


def _cells(history: EpochRows, names: list[str]) -> dict[str, list[str]]:
    rows = list(history)
    return {name: _column_cells([row.get(name) for row in rows]) for name in names}


def _column_cells(values: list[Any]) -> list[str]:
    sizes = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v != 0]
    fixed = not sizes or (min(sizes) >= 1e-3 and max(sizes) < 1e6)
    return [_cell(v, fixed) for v in values]


def _cell(value: Any, fixed: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    return f"{value:.4f}" if fixed else f"{value:.4g}"
