"""Errors as a person reads them: what, where, why, nearest, fix; a user's traceback with the framework folded."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from typing import Any

from nitro_cli.cli.failure import Failure, package_of
from nitro_cli.errors import NitroError
from nitro_cli.text import visible

__all__ = ["error_lines", "folded_traceback", "full_traceback", "labelled"]

_NARROWEST = 20
_FOLDED = {"nitro": "nitro", "typer": "nitro", "jax": "jax"}
_JAX_OWN = {"UnfilteredStackTrace", "JaxStackTraceBeforeTransformation"}
_JAX_NOISE = ("For simplicity, JAX has removed its internal frames", "JAX_TRACEBACK_FILTERING", "--------------------")


def error_lines(failure: Failure) -> list[str]:
    """The lines for stderr of `failure`, without a traceback."""
    error = failure.error
    lines = labelled("error", error.what, "1;31")
    if error.place:
        lines += labelled("  where", error.place, "2")
    if error.why:
        lines += labelled("  why", error.why, "2")
    if error.nearest:
        lines += labelled("  nearest", ", ".join(error.nearest), "36")
    if error.fix:
        lines += labelled("  fix", error.fix, "32")
    return lines


def labelled(label: str, text: str, style: str) -> list[str]:
    """The lines of a text behind its label for stderr, wrapped between words for a terminal.

    Args:
        label: what kind of text it is.
        text: the text, as anybody wrote it.
        style: color of the label in a terminal, as the digits of its escape sequence.
    """
    start, end = (f"\x1b[{style}m", "\x1b[0m") if _styled() else ("", "")
    indent = " " * (len(label) + 2)
    lines = [part for line in visible(text).split("\n") for part in _wrapped(line, len(indent))]
    return [f"{start}{label}:{end} {lines[0]}", *(indent + line for line in lines[1:])]


def _wrapped(line: str, indent: int) -> list[str]:
    if sys.stderr is None or not sys.stderr.isatty():
        return [line]
    # Python asks stdout for the size, which may be a pipe.
    with contextlib.suppress(OSError, ValueError):
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(sys.stderr.fileno()).columns
        width = max(_NARROWEST, columns - indent)
        margin = line[: len(line) - len(line.lstrip())]
        how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        return textwrap.wrap(line, width, subsequent_indent=margin, **how) or [""]
    return [line]


def _styled() -> bool:
    """Whether stderr takes colors: a terminal, with no NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(sys.stderr is not None and sys.stderr.isatty())


def full_traceback(exception: BaseException) -> str:
    """Python's own traceback, nothing folded."""
    return "".join(traceback.format_exception(exception)).rstrip()


def folded_traceback(exception: BaseException) -> str:
    """The traceback of `exception` and of what caused it, the frames of nitro and of jax folded into one line each."""
    lines: list[str] = []
    chain = list(_chain(exception))
    for link, bridge in reversed(chain):
        lines += _one(link)
        if bridge:
            lines += ["", bridge, ""]
    return "\n".join(lines)


def _chain(exception: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The exception and its causes, outermost first, each with the sentence that joins it to the one above."""
    current: BaseException | None = exception
    bridge = ""
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current, bridge
        if current.__cause__ is not None:
            current, bridge = current.__cause__, "The above exception was the direct cause of the following exception:"
        elif current.__context__ is not None and not current.__suppress_context__:
            current, bridge = current.__context__, "During handling of the above exception, another exception occurred:"
        else:
            current = None
        if type(current).__name__ in _JAX_OWN:
            return


def _one(exception: BaseException) -> list[str]:
    if isinstance(exception, NitroError):
        return [f"{type(exception).__name__}: {exception.what}"]
    lines = ["Traceback (most recent call last):"]
    run: list[str] = []
    for frame in traceback.extract_tb(exception.__traceback__):
        owner = _FOLDED.get(package_of(frame.filename) or "")
        if owner is None:
            lines += _fold(run)
            run = []
            lines += "".join(traceback.format_list([frame])).rstrip("\n").split("\n")
            continue
        if run and run[-1] != owner:
            lines += _fold(run)
            run = []
        run.append(owner)
    lines += _fold(run)
    last = "".join(traceback.format_exception_only(exception)).rstrip().split("\n")
    lines += [line for line in last if not line.startswith(_JAX_NOISE)]
    return lines


def _fold(run: list[str]) -> list[str]:
    if not run:
        return []
    return [f"  … {len(run)} frame{'s' * (len(run) > 1)} of {run[0]} …"]
