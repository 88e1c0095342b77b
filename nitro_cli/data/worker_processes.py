"""Worker processes of data loaders: a signal to the whole group is the run's, and forks beside JAX's threads are told.

A terminal's Ctrl-C and a scheduler's warning go to every process of a job. The run answers them, finishes the step in
flight and ends its workers itself; a worker that dies of the signal would take that step's batch with it.
"""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Iterator

from nitro_cli.errors import warn

__all__ = ["answer_fork_warnings", "block_group_signals", "ignore_group_signals"]

_GROUP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGUSR1") if hasattr(signal, name)]
_FORK_WARNINGS = r"os\.fork\(\) was called|This process .* is multi-threaded, use of fork\(\)"


def block_group_signals() -> None:
    """Hold SIGINT and SIGUSR1 back in this thread, and so in every process that it starts, by whatever method.

    SIGTERM is what loaders end their workers by, so it goes through.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)


def ignore_group_signals() -> None:
    """In the main thread of a worker process: leave SIGINT and SIGUSR1 to the run."""
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def answer_fork_warnings(where: str) -> Iterator[None]:
    """Answer JAX's warning of forked processes, and Python's, with the setting that avoids it.

    Args:
        where: what starts the processes, at the head of the sentence.
    """
    if any(one[0] == "ignore" and getattr(one[1], "pattern", None) == _FORK_WARNINGS for one in warnings.filters):
        yield  # answered before
        return
    told: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.filterwarnings("always", message=_FORK_WARNINGS)
            try:
                yield
            finally:
                told += recorded or []
    finally:
        for one in told:
            if not _is_of_fork(one):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)
    if any(map(_is_of_fork, told)):
        warn(
            f"{where} forks worker processes from one that runs JAX's threads, which can leave a worker waiting for "
            "ever for a lock: start them by another method, DataLoader(..., multiprocessing_context='forkserver') or "
            "multiprocessing.get_context('forkserver'); what they are given has to be picklable"
        )
        # Said once: the loader forks in every epoch.
        warnings.filterwarnings("ignore", message=_FORK_WARNINGS)


def _is_of_fork(told: warnings.WarningMessage) -> bool:
    text = str(told.message)
    return "os.fork() was called" in text or "use of fork()" in text
