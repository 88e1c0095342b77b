"""Command-line values without pydantic: typer loads it for every value, also for text and for what was not given."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["make_light"]


def make_light(command: Any) -> Any:
    """Let the parameters of a command take over values that need no conversion as they are; return the command.

    Loading pydantic takes as long as the rest of `nitro runs` together.
    """
    for parameter in command.params:
        _lighten(parameter)
    find_help = command.get_help_option

    def get_help_option(ctx: typer.Context) -> Any:
        option = find_help(ctx)
        if option is not None:
            _lighten(option)
        return option

    command.get_help_option = get_help_option
    for inner in getattr(command, "commands", {}).values():
        make_light(inner)
    return command


def _lighten(parameter: Any) -> None:
    convert = parameter.process_value

    def process_value(ctx: typer.Context, value: Any) -> Any:
        if value is None and not parameter.required:
            return None
        if parameter.callback is None and _is_ready(parameter, value):
            return value
        return convert(ctx, value)

    parameter.process_value = process_value


def _is_ready(parameter: Any, value: Any) -> bool:
    """Whether `value` already has the declared type."""
    declared = parameter.type_descriptor.annotation
    if declared is str:
        return isinstance(value, str)
    if declared == list[str]:
        return isinstance(value, tuple | list) and bool(value) and all(isinstance(item, str) for item in value)
    if value is parameter.default:
        return isinstance(declared, type) and isinstance(value, declared)
    return False
