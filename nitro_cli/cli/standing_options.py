"""The options every command takes: --json where it reports, --quiet, --verbose, --debug."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from nitro_cli.cli.output import Output

__all__ = ["with_standing_options"]

_PANEL = "Output"


def _flag(names: tuple[str, ...], help: str) -> Any:
    return Annotated[bool, typer.Option(*names, help=help, rich_help_panel=_PANEL)]


_OPTIONS = {
    "json_": _flag(("--json",), "One JSON document on stdout; errors as JSON on stderr."),
    "quiet": _flag(("--quiet", "-q"), "Only results and errors."),
    "verbose": _flag(("--verbose", "-v"), "Also the setup report and all warnings."),
    "debug": _flag(("--debug",), "Tracebacks in full."),
}


def with_standing_options(function: Callable[..., Any], *, json: bool) -> Callable[..., Any]:
    """`function` with the options every command takes, and with its `Output` as first argument.

    The function is written as `run(output, ...)`; typer sees its other parameters and the standing ones.
    """
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    names = [name for name in _OPTIONS if json or name != "json_"]
    kind = inspect.Parameter.KEYWORD_ONLY
    standing = [inspect.Parameter(name, kind, default=False, annotation=_OPTIONS[name]) for name in names]
    context = inspect.Parameter("typer_context", kind, annotation=typer.Context)

    @functools.wraps(function)
    def called(*, typer_context: typer.Context, **values: Any) -> Any:
        output: Output = typer_context.obj
        output.json |= values.pop("json_", False)
        output.quiet |= values.pop("quiet")
        output.verbose |= values.pop("verbose")
        output.debug |= values.pop("debug")
        return function(output, **values)

    parameters = [context, *(p.replace(kind=kind) for p in own), *standing]
    setattr(called, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - unknown to mypy
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    del called.__wrapped__
    return called
