"""Files as nitro reads and writes them: regular ones only, never waiting on a pipe, replaced whole.

A file of a run may have been made by somebody else, or replaced by a link or a named pipe since. Nothing here follows
a link unless told to, and nothing waits for a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = [
    "IrregularFileError",
    "append_descriptor",
    "fsync_directory",
    "open_regular",
    "read_regular",
    "write_atomically",
]

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_CLOSE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class IrregularFileError(OSError):
    """A file is not what nitro reads or writes there: it is a link, a pipe, a device or a directory, or too large."""


def read_regular(path: Path | str, *, limit: int | None = None, follow: bool = True) -> bytes:
    """Read a whole regular file.

    Args:
        path: the file.
        limit: the most bytes that a sensible file of this kind has.
        follow: whether `path` may itself be a link; False for the files of a run, a record or a bundle.

    Raises:
        OSError: it is no regular file, is larger than `limit`, is a link that must not be followed, or cannot be read.
    """
    descriptor = open_regular(path, os.O_RDONLY, follow=follow)
    with os.fdopen(descriptor, "rb") as file:
        if limit is not None and os.fstat(descriptor).st_size > limit:
            raise IrregularFileError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
        return file.read()


def append_descriptor(path: Path | str) -> int:
    """Open a regular file for appending, made if it is not there; a link is refused.

    Raises:
        OSError: it is a link or no regular file, or cannot be opened.
    """
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, follow=False)


def open_regular(path: Path | str, flags: int, *, follow: bool) -> int:
    """Open a regular file with the flags of `os.open`; returns its descriptor.

    Raises:
        IrregularFileError: it is no regular file, or a link while `follow` is False.
        OSError: it cannot be opened.
    """
    flags |= 0 if follow else _NO_FOLLOW
    try:
        descriptor = os.open(path, flags | _NO_WAIT | _CLOSE, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & _NO_FOLLOW:
            why = "it is a link, which nitro does not follow here"
            raise IrregularFileError(errno.ELOOP, why, str(path)) from error
        # A pipe without a reader, a socket: opening for writing says no such device.
        if error.errno == errno.ENXIO:
            raise IrregularFileError(errno.EINVAL, "it is not a regular file", str(path)) from error
        if error.errno == errno.EISDIR:
            raise IrregularFileError(errno.EISDIR, "it is a directory, not a regular file", str(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise IrregularFileError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return descriptor


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part of either.

    The temporary file is named `.<name>.tmp-<random>`, beside `path`. The content is durable when this returns.

    Raises:
        OSError: the folder cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the entries of a directory durable; where directories cannot be opened (Windows) this does nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (PermissionError, IsADirectoryError):
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
