"""Checking XLA options before anything is compiled with them."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import ConfigError, nearest

__all__ = ["check_compile_options"]

_UNKNOWN = "No such compile option"
_COMPILER_BYTES = 10_000_000  # the library that holds the compiler is larger, its front ends are smaller


def check_compile_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ask the compiler itself whether it takes these options, on the smallest program there is.

    Args:
        options: XLA option names and their values, as for `jax.jit(...).lower(...).compile(compiler_options=...)`.

    Returns:
        The options as a plain dict, empty for None.

    Raises:
        ConfigError: options that XLA does not know, all of them with the nearest names, or values it refuses.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"compile_options is {type(options).__name__}",
            where="compile_options",
            fix='give a mapping: {"xla_cpu_enable_fast_math": True}',
        )
    options = dict(options or {})
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            raise ConfigError(
                f"compile option {name!r} has a value of type {type(value).__name__}",
                where="compile_options",
                fix="give a number, a bool or a text",
            )
    if not options or _refusal(options) is None:
        return options
    refused = {name: said for name, value in options.items() if (said := _refusal({name: value})) is not None}
    unknown = sorted(name for name, said in refused.items() if _UNKNOWN in said)
    if unknown:
        close = dict.fromkeys(found for name in unknown for found in _suggestions(name))
        raise ConfigError(
            f"unknown compile option{'s' * (len(unknown) > 1)}: {', '.join(unknown)}",
            where="compile_options",
            why="this XLA has no option of that name",
            fix="correct or remove it",
            nearest=close,
        )
    said = next(iter(refused.values()), None) or _refusal(options)
    raise ConfigError(
        f"XLA refuses the compile options {', '.join(sorted(refused) or sorted(options))}",
        where="compile_options",
        why=said,
        fix="correct the value",
    )


def _refusal(options: Mapping[str, Any]) -> str | None:
    """What the compiler says against the options, or None."""
    lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), jnp.float32))
    try:
        lowered.compile(compiler_options=dict(options))
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def _suggestions(unknown: str) -> list[str]:
    # A name found in the library may be something else than an option; the compiler knows.
    return [name for name in nearest(unknown, _names_in_library()) if _UNKNOWN not in (_refusal({name: ""}) or "")]


@cache
def _names_in_library() -> tuple[str, ...]:
    """Texts in the installed compiler that look like options; about half a second, and only after a wrong name."""
    import jaxlib

    names: set[str] = set()
    for library in Path(jaxlib.__file__).parent.glob("*.so"):
        if library.stat().st_size < _COMPILER_BYTES:
            continue
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(b"\0xla_")
            while at >= 0:
                found = re.match(rb"xla_[a-z0-9_]+(?=\0)", content[at + 1 : at + 100])
                if found:
                    names.add(found[0].decode())
                at = content.find(b"\0xla_", at + 1)
    return tuple(sorted(names))
