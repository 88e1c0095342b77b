"""Help pages as plain text, grouped under headings: rich would cost more than the rest of `nitro --help` together."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from nitro_cli.cli.knob_flags import as_assignments

__all__ = ["HelpCommand", "HelpGroup"]


def _write_options(command: Any, ctx: typer.Context, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    standing: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        panel = getattr(parameter, "rich_help_panel", None)
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        chosen = standing if panel == "Output" else panels
        chosen.setdefault(panel or default, []).append(record)
    for title, rows in {**panels, **standing}.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


class HelpCommand(TyperCommand):
    """A command whose options stand under the headings they name."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse, with flags that may take a word written as the assignments that they stand for."""
        takes_sets = any("--set" in parameter.opts for parameter in self.params)
        return list(super().parse_args(ctx, as_assignments(args) if takes_sets else args))

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write arguments and options by heading."""
        _write_options(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group whose commands stand under section headings."""

    def sections(self) -> dict[str, list[tuple[str, str]]]:
        """The commands by section."""
        return {"Commands": [(name, command.get_short_help_str(200)) for name, command in self.commands.items()]}

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the commands, then the options."""
        for title, rows in self.sections().items():
            with formatter.section(title):
                formatter.write_dl(rows)
        _write_options(self, ctx, formatter)

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # type: ignore[override]
        """Names that begin with `incomplete`, with their help; no command is imported."""
        from typer.core import CompletionItem  # type: ignore[attr-defined]

        rows = [row for section in self.sections().values() for row in section]
        found = [CompletionItem(name, help=help) for name, help in rows if name.startswith(incomplete)]
        if found or not incomplete.startswith("-"):
            return found
        return list(super().shell_complete(ctx, incomplete))
