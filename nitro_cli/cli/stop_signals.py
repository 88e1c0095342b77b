"""Stop signals of a command, as exceptions that unwind it and as a flag.

An exception that a signal raises may meet a callback that swallows what it raises, so that the command would go on and
report success: the flag is looked at before that. And inside an import it may leave a library half made, or come out as
another error with a traceback of its own: there the process is left at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn, Protocol

from nitro_cli.errors import ExitCode, NitroError
from nitro_cli.import_frames import importing
from nitro_cli.text import visible

__all__ = [
    "Terminated",
    "forget_stop",
    "leave_at_once",
    "prompt_to_leave",
    "raise_if_stopped",
    "stopped_by",
    "stops_unwind",
]

_SHOW_CURSOR = b"\x1b[?25h"
_came: signal.Signals | None = None


class Told(Protocol):
    """What must be known of a command's output to tell of its end."""

    @property
    def json(self) -> bool:
        """Whether it tells in JSON."""


class Terminated(BaseException):
    """SIGTERM or SIGUSR1 arrived where nothing could be saved."""


def stopped_by() -> signal.Signals | None:
    """The signal that asked this command to stop, unless the run that it trains answered it; None without one."""
    return _came


def raise_if_stopped() -> None:
    """Raise a stop again that somebody swallowed; called before success is told."""
    if _came is not None:
        raise KeyboardInterrupt if _came == signal.SIGINT else Terminated


def forget_stop() -> None:
    """The command is over: what stopped it is nothing to the next one of this process."""
    global _came
    _came = None


def leave_at_once(output: Told, which: signal.Signals, left: str) -> NoReturn:
    """End the process from wherever it is, with one line: past Python's streams, whose locks may be held."""
    interrupted = which == signal.SIGINT
    code = ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
    said = f"{'interrupted by Ctrl-C' if interrupted else f'terminated by {which.name}'}; {left}"
    if output.json:
        from nitro_cli.cli import json_document

        told = NitroError(said).as_json()
        told |= {"error": "KeyboardInterrupt" if interrupted else "Terminated", "exit_code": int(code)}
        said = json_document.dumps(json_document.document(**told), indent=None)
    with contextlib.suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + f"{visible(said)}\n".encode())
    os._exit(code)


@contextlib.contextmanager
def stops_unwind(output: Told) -> Iterator[None]:
    """While inside and no run is there to answer them, stop signals unwind the process: what was begun is cleaned up.

    A signal that the process was started to ignore stays ignored.
    """

    def answer(number: int, frame: FrameType | None) -> None:
        global _came
        _came = signal.Signals(number)
        if importing(frame):
            leave_at_once(output, _came, "there was nothing to save")
        raise_if_stopped()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        before = signal.getsignal(number)
        if before == signal.SIG_DFL or (number == signal.SIGINT and callable(before)):
            previous[number] = signal.signal(number, answer)
    try:
        with _swallowed_in_silence():
            yield
    finally:
        for which, handler in previous.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def prompt_to_leave(output: Told) -> Iterator[None]:
    """While inside, a stop signal is served whatever the main thread is doing, and a second one ends the process."""
    from nitro_cli.run import NothingToSave, ServedSignals

    with ServedSignals(NothingToSave(), functools.partial(leave_at_once, output)):
        yield


@contextlib.contextmanager
def _swallowed_in_silence() -> Iterator[None]:
    """A stop that meets a finalizer or a callback of C code is told once, at the end, and not as a traceback there."""
    before = sys.unraisablehook

    def unraisable(what: Any, /) -> Any:
        if _came is None or not isinstance(what.exc_value, KeyboardInterrupt | Terminated):
            before(what)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = before
