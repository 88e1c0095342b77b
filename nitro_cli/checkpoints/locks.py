"""Locks between processes: one on a directory's manifest, one on each run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nitro_cli.errors import LockedError, StorageError
from nitro_cli.text import open_regular

from .transient import storage_error

__all__ = ["RunLock", "manifest_lock", "run_in_use", "run_is_locked"]

MANIFEST_LOCK = ".manifest.lock"
RUN_LOCK = ".lock"
_MANIFEST_SECONDS = 120.0
# A look at whether the lock is free holds it for an instant; a real holder keeps it for longer than this.
_RUN_SECONDS = 0.5
_POLL_SECONDS = 0.02


@contextmanager
def manifest_lock(root: Path) -> Iterator[None]:
    """Hold the lock on a directory's manifest.

    Raises:
        StorageError: another process keeps it, or the lock file cannot be written.
    """
    import filelock

    path = root / MANIFEST_LOCK
    lock = filelock.FileLock(path, timeout=_MANIFEST_SECONDS, thread_local=False)
    try:
        lock.acquire(poll_interval=_POLL_SECONDS)
    except filelock.Timeout as error:
        raise StorageError(
            "the manifest stayed locked",
            where=str(path),
            why=f"another process has held its lock for {_MANIFEST_SECONDS:g} s",
            fix="see which process that is (`lsof`), and whether the file system supports locks",
        ) from error
    except OSError as error:
        raise storage_error(error, "the manifest could not be locked", path) from error
    try:
        yield
    finally:
        lock.release()


class RunLock:
    """The lock that says a process is at work on a run; freed by the system when the process dies."""

    def __init__(self, run_path: Path) -> None:
        import filelock

        self._path = run_path / RUN_LOCK
        self._lock = filelock.FileLock(self._path, thread_local=False)

    def acquire(self, seconds: float = _RUN_SECONDS) -> None:
        """Take the lock.

        Raises:
            LockedError: another process has it.
            StorageError: the lock file cannot be written.
        """
        import filelock

        try:
            self._lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
        except filelock.Timeout as error:
            raise run_in_use(self._path.parent) from error
        except OSError as error:
            raise storage_error(error, "the run could not be locked", self._path) from error

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_locked

    def release(self) -> None:
        """Give the lock back; not holding it is no error."""
        self._lock.release(force=True)


def run_in_use(run_path: Path) -> LockedError:
    """The error for a run that another process holds."""
    return LockedError(
        f"the run {run_path.name} is in use",
        where=str(run_path),
        why="another process is training it",
        fix="wait until it ends; to branch from one of its checkpoints, resume from an earlier one",
    )


def run_is_locked(run_path: Path) -> bool:
    """Whether some process is at work on the run. Creates nothing; needs no permission to write."""
    path = run_path / RUN_LOCK
    try:
        import fcntl
    except ImportError:
        return _is_locked_elsewhere(path)
    try:
        descriptor = open_regular(path, os.O_RDONLY, follow=False)
    except OSError:
        return False
    try:
        # A shared lock can be taken by any number of onlookers, but not while the run's exclusive one is held.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _is_locked_elsewhere(path: Path) -> bool:
    import filelock

    if not path.exists():
        return False
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except (filelock.Timeout, OSError):
        return True
    lock.release()
    return False
