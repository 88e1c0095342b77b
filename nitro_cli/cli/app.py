"""The `nitro` application: a group that imports a command's module only when the command is used."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nitro_cli.cli.command_table import COMMANDS, CommandEntry, visible_commands
from nitro_cli.cli.guard import guarded
from nitro_cli.cli.help_pages import HelpCommand, HelpGroup
from nitro_cli.cli.light_parameters import make_light
from nitro_cli.cli.output import Output
from nitro_cli.cli.standing_options import with_standing_options
from nitro_cli.cli.unknown_options import note_field_meant
from nitro_cli.errors import nearest
from nitro_cli.installation import nitro_version

__all__ = ["app", "main"]

_PROGRAM = "nitro"
_OBJECTS_OF_A_START = 500_000
_ABOUT = """Train experiments, keep their runs, and use what they learned.

An experiment is a class with fields and hooks; its presets are TOML files. `nitro list` shows those found here,
`nitro new NAME` writes a first one."""


class LazyGroup(HelpGroup):
    """The top group: names and help come from the table, modules are imported on use."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Import and build one command, or None where there is no such name."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else make_light(build_command(cmd_name, entry))

    def sections(self) -> dict[str, list[tuple[str, str]]]:
        """The commands by section, for the help page."""
        return visible_commands()

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Find the command of `args`; an unknown one is refused with the nearest names."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            close = nearest(args[0], COMMANDS)
            ctx.fail(f"no command {args[0]!r}" + (f"; nearest: {', '.join(close)}" if close else ""))
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> Any:
        """Parse and run; always ends with SystemExit and a code of `ExitCode`."""
        extra.pop("standalone_mode", None)
        extra.pop("windows_expand_args", None)
        words = list(sys.argv[1:] if args is None else args)
        self._main_shell_completion(extra, _PROGRAM, complete_var)
        make_light(self)
        before_dashes = words[: words.index("--")] if "--" in words else words
        output = Output(json="--json" in before_dashes, debug="--debug" in before_dashes)

        def body() -> int:
            try:
                with self.make_context(_PROGRAM, words, obj=output, **extra) as ctx:
                    result = self.invoke(ctx)
                    return result if isinstance(result, int) else 0
            except Exception as error:
                note_field_meant(error, words)
                raise

        sys.exit(guarded(body, output))


def build_command(name: str, entry: CommandEntry) -> Any:
    """Import the module of `entry` and make the typer command, or group of commands, called `name`."""
    module = importlib.import_module(f"nitro_cli.cli.commands.{entry.module}")
    made = typer.Typer(name=name, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    if not entry.group:
        _register(made, name, entry, getattr(module, entry.function))
        return typer.main.get_command(made)
    made.info.cls = HelpGroup
    made.info.no_args_is_help = True
    made.info.help = entry.help
    made.callback()(_nothing)
    for sub_name, sub in entry.group.items():
        _register(made, sub_name, sub, getattr(module, sub.function))
    return typer.main.get_command(made)


def _register(made: typer.Typer, name: str, entry: CommandEntry, function: Callable[..., Any]) -> None:
    documentation = (function.__doc__ or "").strip()
    made.command(name, cls=HelpCommand, help=documentation or entry.help, short_help=entry.help)(
        with_standing_options(function, json=entry.reports)
    )


def _nothing() -> None:
    """A group does nothing by itself."""


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"nitro {nitro_version()}")
        raise typer.Exit()


app = typer.Typer(
    name=_PROGRAM,
    cls=LazyGroup,
    help=_ABOUT,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def _root(
    ctx: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also the setup report and all warnings.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks in full.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    output = ctx.obj
    output.quiet, output.verbose, output.debug = quiet, verbose, output.debug or debug


def main() -> None:
    """Run the command line of this process."""
    _put_off_collection()
    app_command = typer.main.get_command(app)
    assert isinstance(app_command, TyperGroup)
    app_command.main(prog_name=_PROGRAM)


def _put_off_collection() -> None:
    """Look for garbage once the start is over: imports and traces leave little, and looking takes a tenth of it."""

    def started(phase: str, info: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(started)
            gc.freeze()
            gc.set_threshold(20_000, 50, 100)

    gc.set_threshold(_OBJECTS_OF_A_START)
    gc.callbacks.append(started)
