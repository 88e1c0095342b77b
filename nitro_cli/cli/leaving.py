"""How the process of a command ends at once: by a watcher, while the main thread is inside a long call."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from nitro_cli.cli import json_document
from nitro_cli.cli.output import Output
from nitro_cli.errors import ExitCode, NitroError
from nitro_cli.text import visible

__all__ = ["prompt_to_leave"]

_SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def prompt_to_leave(output: Output) -> Iterator[None]:
    """While inside, a stop signal is served whatever the main thread is doing, and a second one ends the process."""
    from nitro_cli.run import NothingToSave, set_leave, signals

    def leave(which: signal.Signals, left: str) -> None:
        interrupted = which == signal.SIGINT
        code = ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
        said = f"{'interrupted by Ctrl-C' if interrupted else f'terminated by {which.name}'}; {left}"
        if output.json:
            told = NitroError(said).as_json()
            told |= {"error": "KeyboardInterrupt" if interrupted else "Terminated", "exit_code": int(code)}
            said = json_document.dumps(json_document.document(**told), indent=None)
        # Past Python's streams: another thread may hold their locks.
        with contextlib.suppress(OSError):
            os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + f"{visible(said)}\n".encode())
        os._exit(code)

    previous = set_leave(leave)
    try:
        with signals(NothingToSave()):
            yield
    finally:
        set_leave(previous)
