"""Which display a Python program has that chose none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nitro_cli.display.console import make_console

if TYPE_CHECKING:
    from nitro_cli.display.live import LiveReporter
    from nitro_cli.display.notebook import NotebookReporter
    from nitro_cli.display.plain import PlainReporter

__all__ = ["reporter_for_scripts"]


def reporter_for_scripts() -> LiveReporter | NotebookReporter | PlainReporter:
    """The display of a Python program or notebook that chose none: live where it can be, else plain lines."""
    console = make_console(stderr=True)
    if console.is_jupyter:
        from nitro_cli.display.notebook import NotebookReporter

        return NotebookReporter()
    if console.is_terminal:
        from nitro_cli.display.live import LiveReporter

        return LiveReporter(console)
    from nitro_cli.display.plain import PlainReporter

    return PlainReporter(lambda text: print(text, file=sys.stderr, flush=True))
