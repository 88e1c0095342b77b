"""A resolved experiment as a page and as part of a document: each field with kind, type, value and origin."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.render.fields import field_lines
from nitro_cli.cli.render.tables import value_text
from nitro_cli.experiment import KNOBS, NO_DEFAULT

if TYPE_CHECKING:
    from nitro_cli.registry import FieldRow, Resolved

__all__ = ["configuration_document", "configuration_lines"]


def configuration_document(resolved: Resolved) -> dict[str, Any]:
    """The keys `experiment`, `import_path`, `preset`, `fields` and `schedules` of a document."""
    from nitro_cli.registry import field_rows

    return {
        "experiment": resolved.class_name,
        "import_path": resolved.import_path,
        "preset": resolved.preset,
        "fields": [_as_json(row) for row in field_rows(resolved)],
        "schedules": resolved.schedules,
    }


def configuration_lines(
    resolved: Resolved, *, every_origin: bool, width: int, knobs: bool = True, documented: bool = True
) -> list[str]:
    """The lines of the experiment's own fields, the run knobs and the schedules.

    Args:
        resolved: the experiment.
        every_origin: say of every value where it was written; otherwise of those that are not the class default.
        width: columns to fit into.
        knobs: with the inherited run knobs.
        documented: with the documentation of each field.
    """
    from nitro_cli.registry import field_rows

    rows = field_rows(resolved)
    how: dict[str, Any] = {"every_origin": every_origin, "documented": documented, "width": width}
    lines: list[str] = []
    own = [row for row in rows if row.name not in KNOBS]
    if own:
        lines += ["", "fields", *field_lines(own, **how)]
    if knobs:
        inherited = [row for row in rows if row.name in KNOBS]
        lines += ["", "run knobs", *field_lines(inherited, **how)]
    if resolved.schedules is not None:
        lines += ["", "schedules"]
        for key, value in resolved.schedules.items():
            where = resolved.origins.get(f"schedules.{key}") or resolved.origins.get("schedules")
            lines += textwrap.wrap(
                f"{key} = {value_text(value)}", width, initial_indent="  ", subsequent_indent="      "
            )
            if where is not None:
                lines += textwrap.wrap(f"from {where}", width, initial_indent="      ", subsequent_indent="      ")
    return lines


def _as_json(row: FieldRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "type": row.type,
        "value": row.value,
        "default": None if row.default is NO_DEFAULT else row.default,
        "required": row.default is NO_DEFAULT,
        "origin": row.origin_text,
        "doc": row.doc,
    }
