"""Which display a command uses."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nitro_cli.cli.output import Output, make_console
from nitro_cli.cli.stop_signals import prompt_to_leave

if TYPE_CHECKING:
    from nitro_cli.cli.render.live import LiveReporter
    from nitro_cli.cli.render.notebook import NotebookReporter
    from nitro_cli.cli.render.plain import PlainReporter

__all__ = ["progress_shown", "reporter_for_scripts"]


@contextlib.contextmanager
def progress_shown(output: Output) -> Iterator[None]:
    """Show the progress of what runs inside: live in a terminal, plain lines elsewhere; stop signals are served.

    Under --quiet and --json nothing is shown.
    """
    from nitro_cli.run import set_progress_reporter

    reporter = _choose(output)
    previous = set_progress_reporter(reporter)
    try:
        with output.hooks_to_stderr(), prompt_to_leave(output):
            yield
    finally:
        set_progress_reporter(previous)
        if reporter is not None:
            reporter.close()


def reporter_for_scripts() -> LiveReporter | NotebookReporter | PlainReporter:
    """The display of a Python program or notebook that chose none: live where it can be, else plain lines."""
    console = make_console(stderr=True)
    if console.is_jupyter:
        from nitro_cli.cli.render.notebook import NotebookReporter

        return NotebookReporter()
    if console.is_terminal:
        from nitro_cli.cli.render.live import LiveReporter

        return LiveReporter(console)
    from nitro_cli.cli.render.plain import PlainReporter

    return PlainReporter(lambda text: print(text, file=sys.stderr, flush=True))


def _choose(output: Output) -> LiveReporter | PlainReporter | None:
    if output.quiet or output.json or output.silent or sys.stderr is None:
        return None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from nitro_cli.cli.render.live import LiveReporter

        return LiveReporter(make_console(stderr=True), closing=False)
    from nitro_cli.cli.render.plain import PlainReporter

    return PlainReporter(output.complain, closing=False)
