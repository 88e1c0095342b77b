"""How the process of a command ends at once: by a watcher, while the main thread is inside a long call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from nitro_cli.cli.output import Output
from nitro_cli.cli.stop_signals import leave_at_once

__all__ = ["prompt_to_leave"]


@contextlib.contextmanager
def prompt_to_leave(output: Output) -> Iterator[None]:
    """While inside, a stop signal is served whatever the main thread is doing, and a second one ends the process."""
    from nitro_cli.run import NothingToSave, set_leave, signals

    previous = set_leave(functools.partial(leave_at_once, output))
    try:
        with signals(NothingToSave()):
            yield
    finally:
        set_leave(previous)
