"""Which display a command uses."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nitro_cli.cli.output import Output, make_console

if TYPE_CHECKING:
    from nitro_cli.cli.render.live import LiveReporter
    from nitro_cli.cli.render.plain import PlainReporter

__all__ = ["progress_shown"]


@contextlib.contextmanager
def progress_shown(output: Output) -> Iterator[None]:
    """Show the progress of what runs inside: live in a terminal, plain lines elsewhere, nothing under --quiet or --json."""
    from nitro_cli.run import set_progress_reporter

    reporter = _choose(output)
    previous = set_progress_reporter(reporter)
    try:
        with output.hooks_to_stderr():
            yield
    finally:
        set_progress_reporter(previous)
        if reporter is not None:
            reporter.close()


def _choose(output: Output) -> LiveReporter | PlainReporter | None:
    if output.quiet or output.json or sys.stderr is None:
        return None
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from nitro_cli.cli.render.live import LiveReporter

        return LiveReporter(make_console(stderr=True))
    from nitro_cli.cli.render.plain import PlainReporter

    return PlainReporter(output.complain)
