"""Stop signals, served in every phase: also while the main thread is inside a long call of the compiler.

Python runs a signal handler in the main thread, between two bytecodes; a compile or a long step holds it back for
minutes. So the signal's number also goes to a watcher thread, which acts where the main thread does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import current_process, util
from types import FrameType
from typing import Any, Protocol

from nitro_cli.data import ignore_group_signals
from nitro_cli.import_frames import importing

__all__ = ["NothingToSave", "ServedSignals", "Stoppable", "stop_again"]

STOP_SIGNALS = {
    getattr(signal, name): name.lower() for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)
}
GRACE_SECONDS = 0.5
"""How long the main thread has to answer a signal before the watcher takes it to be inside a long call."""
LEAVING_SECONDS = 20.0
"""How long the main thread has to unwind once it answered that there is nothing to save."""
CLEANING_SECONDS = 5.0
_END = b"\0"

Leave = Callable[[signal.Signals, str], None]
_active: weakref.WeakSet[ServedSignals] = weakref.WeakSet()


class Stoppable(Protocol):
    """What the signals stop."""

    def stop_asked(self, cause: str) -> bool:
        """Note the first signal (`sigint`, `sigterm`, `sigusr1`); True when the work will stop by itself and save.

        False when there is nothing to save: then the process leaves.
        """

    def abandon(self) -> str:
        """Undo what is half made and say what is left; may be called from another thread, right before the end."""


class NothingToSave:
    """Work that leaves nothing on disk: a setup, an evaluation."""

    def stop_asked(self, cause: str) -> bool:
        """Leave at once."""
        return False

    def abandon(self) -> str:
        """Nothing to undo."""
        return "there was nothing to save"


def stop_again() -> None:
    """Stop once more where work goes on after a signal: a callback may swallow what the answer to it raised.

    Called before something that took long is published. Nothing happens when no signal came, or a run saves and stops.
    """
    for work in list(_active):
        work.stop_again()


class ServedSignals:
    """While inside, the stop signals that are not ignored become requests to `work`; a second one leaves at once.

    Only the main thread of the main interpreter can own signal handlers: elsewhere nothing is installed. The old
    handlers come back at the end, and forked children never have these.

    When `work` has nothing to save, the handler from before decides (Python's own raises KeyboardInterrupt, the
    command line's unwinds), and without one the process leaves by SystemExit.

    Args:
        work: what the signals stop.
        leave: gives the process to nitro: a watcher ends it by `leave(signal, what_is_left)`, which does not return;
            None is that of the work around this, if any. Without one, a watcher ends the process only by signals that
            would have ended it without nitro.
    """

    def __init__(self, work: Stoppable, leave: Leave | None = None) -> None:
        self._work = work
        self._end = leave
        self._previous: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._decided = False
        self._number: int | None = None
        self._heard = threading.Event()
        self._leaving = threading.Event()
        self._ending = threading.Event()
        self._shields = 0
        self._held: int | None = None
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._wakeup_before = -1

    def __enter__(self) -> ServedSignals:
        self.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    @contextlib.contextmanager
    def entered_until_error(self) -> Iterator[None]:
        """Enter, and leave again only if what is inside fails; the caller leaves otherwise."""
        self.enter()
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def enter(self) -> None:
        """Install the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        global _workers
        if _workers is None:
            _workers = _Workers()
        if self._end is None:
            self._end = next((around._end for around in list(_active) if around._end is not None), None)
        self._watch()
        _active.add(self)
        child = getattr(signal, "SIGCHLD", None)
        if child is not None and callable(signal.getsignal(child)):
            # PyTorch's raises wherever the main thread stands when a worker dies; whoever reads from it notices too.
            self._previous[child] = signal.signal(child, signal.SIG_DFL)
        for number in STOP_SIGNALS:
            # What the process was told to ignore, as a shell's background job is told for SIGINT, stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def leave(self) -> None:
        """Give the handlers back; twice is no error."""
        if self._ends is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        try:
            signal.set_wakeup_fd(self._wakeup_before)
        except (ValueError, OSError):
            signal.set_wakeup_fd(-1)
        _active.discard(self)
        _, writing = self._ends
        self._ends = None
        with contextlib.suppress(OSError), writing:
            writing.send(_END)

    @property
    def heard(self) -> bool:
        """Whether a stop signal came since the handlers were installed."""
        return self._decided

    def stop_again(self) -> None:
        """See the function of this name."""
        if self._leaving.is_set() and self._number is not None:
            self._unwind(self._number, None)

    def forget(self) -> None:
        """In a forked child: let go of what belongs to the parent."""
        for end in self._ends or ():
            end.close()
        self._ends = None

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Hold a signal back while what is inside must not be cut in two; it is answered at the end."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if not self._shields and self._held is not None:
                number, self._held = self._held, None
                self._answer(number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._heard.set()
        if self._shields and self._held is None and not self._decided:
            self._held = number
            return
        self._answer(number, frame)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self._first():
            if self._work.stop_asked(STOP_SIGNALS[number]):
                return
            self._number = number
            self._leaving.set()
            if self._end is not None and importing(frame):
                # An exception would leave a library half made, or come out of it as an error of its own.
                self._end_process(number)
        elif self._may_end_process(number):
            # The watcher has it: it is the signal that it answered itself, or the second, at which the process ends.
            while self._ending.is_set():
                time.sleep(0.1)
            return
        self._unwind(number, frame)

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        before = self._previous.get(number)
        if callable(before):
            before(number, frame)
            return
        raise SystemExit(128 + number)

    def _first(self) -> bool:
        with self._lock:
            first, self._decided = not self._decided, True
        return first

    # The watcher

    def _watch(self) -> None:
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        self._ends = (reading, writing)
        self._wakeup_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._serve, args=(reading,), name="nitro-signals", daemon=True).start()

    def _serve(self, reading: socket.socket) -> None:
        count, first = 0, int(signal.SIGTERM)
        waits: list[float] = []
        with reading:
            while True:
                reading.settimeout(waits[0] if waits else None)
                try:
                    numbers = reading.recv(64)
                except TimeoutError:
                    waits = self._unanswered(first, last=len(waits) == 1)
                    continue
                if not numbers or _END in numbers:
                    return
                for number in filter(STOP_SIGNALS.__contains__, numbers):
                    count += 1
                    if not self._may_end_process(number):
                        continue
                    if count > 1:
                        self._end_process(number)
                    first, waits = number, [GRACE_SECONDS, LEAVING_SECONDS]

    def _unanswered(self, number: int, *, last: bool) -> list[float]:
        """The main thread did not answer a signal, or has not left yet; return how long to wait from here."""
        if self._heard.is_set():
            if last:
                self._end_process(number)
            return [LEAVING_SECONDS] if self._leaving.is_set() else []
        if self._first() and not self._work.stop_asked(STOP_SIGNALS[number]):
            self._end_process(number)
        return []

    def _may_end_process(self, number: int) -> bool:
        return self._end is not None or self._previous.get(number) == signal.SIG_DFL

    def _end_process(self, number: int) -> None:
        self._ending.set()
        left = ["what was half made could not be cleaned up"]

        def clean() -> None:
            left[0] = self._work.abandon()

        cleaner = threading.Thread(target=clean, daemon=True)
        cleaner.start()
        cleaner.join(CLEANING_SECONDS)
        _end_children()
        try:
            if self._end is not None:
                self._end(signal.Signals(number), left[0])
        finally:
            os._exit(128 + number)


def _end_children() -> None:
    """Loader workers are ended by handlers at the exit of the interpreter, which does not run."""
    processes = sys.modules.get("multiprocessing")
    with contextlib.suppress(Exception):
        for child in processes.active_children() if processes is not None else ():
            child.terminate()


_before_fork = threading.local()


class _Workers:
    """Processes that `multiprocessing` forks from a run leave signals to the whole group to it, if they are daemonic.

    Others may be anything; a daemonic one ends with its parent, and is what loaders read by.
    """

    def __init__(self) -> None:
        self.forked_from_run = False
        util.register_after_fork(self, _Workers.start)

    def start(self) -> None:
        """In the child."""
        if self.forked_from_run and current_process().daemon:
            ignore_group_signals()


_workers: _Workers | None = None


def _hold_before_fork() -> None:
    """A signal that meets a child before it forgot the handlers would speak to the parent's watcher."""
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS) if _active else None


def _release_after_fork() -> None:
    mask, _before_fork.mask = _before_fork.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_in_child() -> None:
    if _workers is not None:
        _workers.forked_from_run = bool(_active)
    if _active:
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)
            for number in STOP_SIGNALS:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for inherited in list(_active):
            inherited.forget()
        _active.clear()
    _release_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_before_fork, after_in_parent=_release_after_fork, after_in_child=_forget_in_child)
