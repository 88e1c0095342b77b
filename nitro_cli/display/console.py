"""Consoles: how wide they are, and what happens when nobody reads them any more."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OutputClosed", "make_console"]

PIPE_WIDTH = 400  # off a terminal a table is as wide as its values: nothing is cut for a reader that is a program


class OutputClosed(BaseException):
    """The reader of stdout has gone away; there is nobody left to tell."""


def make_console(*, stderr: bool) -> Console:
    """A rich console that reads no markup in names and texts and ends quietly when its pipe is closed."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise OutputClosed

    stream = sys.stderr if stderr else sys.stdout
    at_terminal = bool(stream is not None and stream.isatty())
    width = _width(at_terminal)
    return _Console(file=stream, width=width, soft_wrap=False, emoji=False, markup=False, highlight=False)


def _width(at_terminal: bool) -> int | None:
    """The columns that a console has; None leaves them to `COLUMNS`, or to the terminal where that is not set."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) == 0:  # shells and containers set it so where they know no width
        return shutil.get_terminal_size((80, 24)).columns if at_terminal else PIPE_WIDTH
    return None if at_terminal or columns else PIPE_WIDTH
