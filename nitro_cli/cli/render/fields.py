"""Fields of an experiment as a page: one line per field, its documentation below."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.render.tables import Bare, value_text

if TYPE_CHECKING:
    from nitro_cli.registry import FieldRow

__all__ = ["field_lines", "plain_value"]

_WIDEST_NAME = 24


def field_lines(
    rows: Iterable[FieldRow], *, every_origin: bool, documented: bool = True, width: int | None = None
) -> list[str]:
    """The lines of a list of fields.

    Args:
        rows: the fields.
        every_origin: also say `class default`; otherwise only values that were set say where.
        documented: with each field's documentation.
        width: columns to fit into; the terminal's by default.
    """
    rows = list(rows)
    columns = width or shutil.get_terminal_size((80, 24)).columns
    longest = min(_WIDEST_NAME, max((len(row.name) for row in rows), default=0))
    kinds = max((len(row.kind) for row in rows), default=0)
    lines: list[str] = []
    for row in rows:
        head = f"  {row.name:<{longest}}  {row.kind:<{kinds}}  "
        typed, value = f"{row.type} = ", value_text(plain_value(row.value))
        fits = len(head) + len(typed) + len(value) <= columns
        lines += _wrapped(typed + value if fits else value, columns, head, " " * len(head))
        if not fits:
            lines += _wrapped(row.type, columns, "      ", "      ")
        notes = [] if row.origin.kind == "default" and not every_origin else [f"from {row.origin_text}"]
        if row.doc and documented:
            notes.insert(0, " ".join(row.doc.split()))
        for note in notes:
            lines += _wrapped(note, columns, "      ", "      ")
    return lines


def _wrapped(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(text, width=width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False)


def plain_value(value: Any) -> Any:
    """A field's value as text or plain types: models as tables without what is none, arrays by type and shape."""
    if hasattr(value, "model_dump"):
        named = value.identity() if hasattr(value, "identity") else {}
        return named | {key: plain_value(inner) for key, inner in dict(value).items() if inner is not None}
    if hasattr(value, "dtype") and getattr(value, "shape", ()) != ():
        return Bare(f"{value.dtype}{list(value.shape)}")
    if isinstance(value, dict):
        return {key: plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)
