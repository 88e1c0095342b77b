"""One write at a time in the background: no failure is lost, and the end of the process waits for it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

from nitro_cli.errors import warn

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one job at a time in a thread of its own.

    The thread ends with its job, so an idle writer holds no thread, and a process that ends in the middle of a job
    finishes it first.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _register(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Wait for the job before, then start this one.

        Raises:
            Exception: what the job before ended with, once; this job is then not started.
        """
        self.wait()

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            Exception: what the last job ended with, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish_at_exit(self) -> None:
        """Wait at the end of the process; an error that nobody asked for becomes a warning."""
        try:
            self.wait()
        except Exception as error:
            warn(f"a checkpoint was not written: {error}")


_WRITERS: weakref.WeakSet[BackgroundWriter] = weakref.WeakSet()
_registered = False


def _register(writer: BackgroundWriter) -> None:
    global _registered
    _WRITERS.add(writer)
    if _registered:
        return
    _registered = True
    # Orbax needs executors inside the job, and the interpreter stops these before it joins threads and long before
    # `atexit`. Only callbacks of `threading` registered after those of `concurrent.futures` run early enough.
    import concurrent.futures.thread  # noqa: F401

    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]


def _finish_all() -> None:
    for writer in list(_WRITERS):
        writer.finish_at_exit()
