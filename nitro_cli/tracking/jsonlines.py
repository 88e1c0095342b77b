"""JSON Lines files: one object per line, appended, safe against a crash and a full disk."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nitro_cli.errors import IntegrityError, StorageError, warn
from nitro_cli.text import IrregularFileError, append_descriptor, json_ready, open_regular, parse_json

__all__ = ["JsonLinesWriter", "check_own_file", "truncate_to"]


class JsonLinesWriter:
    """Appends lines to a file, each handed to the operating system at once, in one write.

    The file is opened at the first line and continued if it exists. A line that cannot be written whole is taken back.

    Args:
        path: the file; its directory is created.
        own: whether the file is the run's own: a link is refused then, and a torn last line found there is moved to
            `<path>.discarded`. What lies in any other file stays as it is; it may also be a pipe or a device.
    """

    def __init__(self, path: str | Path, *, own: bool = True) -> None:
        self.path = Path(path)
        self.own = own
        self._fd: int | None = None
        self._size = 0
        self._failed = False

    def write(self, obj: Mapping[str, Any]) -> None:
        """Append one object; see `write_text`."""
        self.write_text(json.dumps(json_ready(obj), separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n")

    def write_text(self, line: str) -> None:
        """Append one line, which ends in a newline.

        Raises:
            StorageError: the line cannot be written (the disk is full, say). It is raised once:
                lines after that are left out, so that closing a failed run can report its own error.
            IntegrityError: the run's own file is a link or no plain file; likewise once.
        """
        if self._failed:
            return
        # What is no UTF-8 is written as the escape that JSON has for it.
        data = line.encode("utf-8", "backslashreplace")
        try:
            fd = self._open() if self._fd is None else self._fd
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, data[written:])
        except OSError as err:
            self._failed = True
            self._take_back()
            raise _refusal(self.path, err) from err
        self._size += len(data)

    def size(self) -> int:
        """Bytes of the file up to the last whole line: what a checkpoint record keeps."""
        if self._fd is None and not self._failed:
            try:
                return self.path.stat().st_size
            except OSError:
                return 0
        return self._size

    def sync(self) -> None:
        """Ask the operating system to put the lines on the disk."""
        if self._fd is not None and not self._failed:
            try:
                os.fsync(self._fd)
            except OSError as err:
                # Pipes and character devices have nothing to sync.
                if err.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
                    self._failed = True
                    raise _refusal(self.path, err) from err

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> JsonLinesWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.own:
            _mend(self.path)
            self._fd = append_descriptor(self.path)
        else:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
            if _ends_inside_a_line(self.path):
                os.write(self._fd, b"\n")
        self._size = os.fstat(self._fd).st_size
        return self._fd

    def _take_back(self) -> None:
        if self._fd is not None:
            # Truncating needs no space; what is no regular file cannot be truncated.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)


def check_own_file(path: Path) -> None:
    """Check that a JSON Lines file of a run, and what was discarded from it, can be cut and continued; opens both.

    Raises:
        IntegrityError: one of them is a link or no plain file.
        StorageError: one of them cannot be read.
    """
    for file in (path, _discarded(path)):
        try:
            _opened(file, os.O_RDONLY).close()
        except FileNotFoundError:
            continue
        except OSError as err:
            raise _refusal(file, err) from err


def truncate_to(path: str | Path, size: int) -> int:
    """Cut a JSON Lines file of a run to its first `size` bytes; the lines cut are appended to `<path>.discarded`.

    Args:
        path: the file, in the run's directory; one that does not exist is an empty one.
        size: bytes to keep, as `JsonLinesWriter.size` gave them.

    Returns:
        How many bytes were cut.

    Raises:
        StorageError: the disk refused; the file is whole then.
        IntegrityError: it, or `<path>.discarded`, is a link or no plain file.
    """
    path = Path(path)
    try:
        with _opened(path, os.O_RDONLY) as file:
            there = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        there = 0
    except OSError as err:
        raise _refusal(path, err) from err
    if there < size:
        warn(f"{path} has {there} bytes where the checkpoint counted {size}; the lines between are missing from it.")
        return 0
    if there == size:
        return 0
    keep = _line_start(path, size)
    if keep != size:
        warn(f"{path} was changed since the checkpoint: byte {size} is inside a line; it is cut at {keep}.")
    try:
        _discard(path, keep)
    except OSError as err:
        raise _refusal(path, err) from err
    return there - keep


def _discarded(path: Path) -> Path:
    return path.with_name(path.name + ".discarded")


def _line_start(path: Path, size: int) -> int:
    """Return the largest offset up to `size` at which a line begins."""
    with _opened(path, os.O_RDONLY) as file:
        end = size
        while end > 0:
            begin = max(0, end - 65536)
            file.seek(begin)
            at = file.read(end - begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
    return 0


def _discard(path: Path, keep: int) -> None:
    # Copied and on the disk before it is cut: a crash between the two loses nothing.
    with _opened(path, os.O_RDWR) as file:
        file.seek(keep)
        with os.fdopen(append_descriptor(_discarded(path)), "ab") as cut:
            shutil.copyfileobj(file, cut, 1 << 20)
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                cut.write(b"\n")
            cut.flush()
            os.fsync(cut.fileno())
        file.truncate(keep)
        os.fsync(file.fileno())


def _mend(path: Path) -> None:
    """Let the file end at the end of a line, as after a kill in the middle of a write it may not."""
    if not _ends_inside_a_line(path):
        return
    keep = _line_start(path, path.stat().st_size)
    with _opened(path, os.O_RDWR) as file:
        file.seek(keep)
        try:
            whole = isinstance(parse_json(file.read()), dict)
        except ValueError:
            whole = False
        if whole:
            file.write(b"\n")
            return
    _discard(path, keep)


def _ends_inside_a_line(path: Path) -> bool:
    """Whether a plain file ends inside a line; nothing else does."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY, follow=True), "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _opened(path: Path, flags: int) -> BinaryIO:
    """Open a plain file of a run, never through a link."""
    return os.fdopen(open_regular(path, flags, follow=False), "r+b" if flags & os.O_RDWR else "rb")


def _refusal(path: Path, err: OSError) -> StorageError | IntegrityError:
    if isinstance(err, IrregularFileError):
        return IntegrityError(
            f"{path} is no plain file of a run",
            where=str(err.filename or path),
            why=err.strerror,
            fix="do not use this directory unless you know who made it; else put a plain file in its place",
        )
    full = err.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f"{'The disk is full' if full else f'The disk refused ({err.strerror})'} while logging to {path}.",
        where=str(path),
        why=None if full else f"{type(err).__name__}: {err}",
        fix="free space and resume the run"
        if full
        else "check the directory's rights and the disk, then resume the run",
    )
