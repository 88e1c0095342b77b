"""Which display a command uses."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nitro_cli.cli.output import Output
from nitro_cli.cli.stop_signals import prompt_to_leave
from nitro_cli.display import make_console

if TYPE_CHECKING:
    from nitro_cli.display import LiveReporter, PlainReporter

__all__ = ["progress_shown"]


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


def _choose(output: Output) -> LiveReporter | PlainReporter | None:
    if output.quiet or output.json or output.silent or sys.stderr is None:
        return None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from nitro_cli.display import LiveReporter

        return LiveReporter(make_console(stderr=True), closing=False)
    from nitro_cli.display import PlainReporter

    return PlainReporter(output.complain, closing=False)
