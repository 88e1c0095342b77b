"""Which I/O errors pass by themselves, and retrying those with backoff."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nitro_cli.errors import NitroError, StorageError, warn

__all__ = ["is_transient", "os_error_number", "storage_error", "with_retry"]

_T = TypeVar("_T")

TRANSIENT = frozenset(
    {errno.EIO, errno.EAGAIN, errno.ESTALE, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.EWOULDBLOCK}
)
ATTEMPTS = 4
BACKOFF_SECONDS = 0.1

# TensorStore reports the operating system's error inside the text of a ValueError.
_TENSORSTORE_ERRNO = re.compile(r"os_error_code='(\d+)'")

_EXPLANATIONS = {
    errno.ENOSPC: ("the disk is full", "free some space, or keep fewer checkpoints (`keep`), then resume"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or keep fewer checkpoints (`keep`), then resume"),
    errno.EROFS: ("the file system is read-only", "choose a directory that can be written (`run_dir`)"),
    errno.EACCES: ("permission is denied", "choose a directory that you may write to (`run_dir`)"),
    errno.EPERM: ("the operation is not permitted", "choose a directory that you may write to (`run_dir`)"),
}


def os_error_number(error: BaseException) -> int | None:
    """The `errno` behind an exception: of an OSError, or of a TensorStore error that carries one in its text."""
    if isinstance(error, OSError):
        return error.errno
    found = _TENSORSTORE_ERRNO.search(str(error))
    return int(found.group(1)) if found else None


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: a busy, stale or timed-out file system, an interrupted call."""
    return os_error_number(error) in TRANSIENT


def storage_error(error: BaseException, what: str, where: Path | str) -> StorageError:
    """Say as a StorageError that `what` failed at `where`, with the cause and what to do about it.

    Args:
        error: the exception that the write or read ended with.
        what: what was attempted, for instance "the checkpoint was not written".
        where: the file or directory.
    """
    number = os_error_number(error)
    if number is None:
        return StorageError(what, where=str(where), why=f"{type(error).__name__}: {error}")
    name = errno.errorcode.get(number, str(number))
    why, fix = _EXPLANATIONS.get(number, (os.strerror(number), "check the file system, then resume"))
    return StorageError(what, where=str(where), why=f"{why} ({name})", fix=fix)


def with_retry(
    operation: Callable[[], _T],
    what: str,
    *,
    attempts: int = ATTEMPTS,
    backoff: float = BACKOFF_SECONDS,
    sleep: Callable[[float], None] | None = None,
) -> _T:
    """Call `operation`, again after a transient I/O error, and return what it returns.

    The wait before retry k (from 1) is `backoff * 2**(k - 1)` seconds; each retry warns.

    Args:
        operation: called with no arguments; must be safe to repeat after a failure.
        what: how the warning names it.
        attempts: calls in total.
        backoff: first wait, in seconds.
        sleep: stands in for `time.sleep`.

    Raises:
        Whatever `operation` raised last, when it is not transient or the attempts are used up.
    """
    for attempt in range(1, attempts + 1):
        try:
            return operation()
        except NitroError:
            raise
        except Exception as error:
            if attempt == attempts or not is_transient(error):
                raise
            wait = backoff * 2 ** (attempt - 1)
            warn(f"{what}: {error}; trying again in {wait:g} s ({attempt} of {attempts - 1})")
            (sleep or time.sleep)(wait)
    raise AssertionError("unreachable")
