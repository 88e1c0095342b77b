"""A directory that is written to for hours: held open, so that one that was moved or removed is told from a new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nitro_cli.errors import StorageError

__all__ = ["HeldDirectory"]


class HeldDirectory:
    """One run's directory.

    Its number on the disk cannot pass to another directory as long as it is open.

    Args:
        path: the directory; not a link.

    Raises:
        OSError: it is not there, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._descriptor: int | None = None
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
        with contextlib.suppress(PermissionError):  # where directories cannot be opened (Windows)
            self._descriptor = os.open(self.path, flags)
        found = os.lstat(self.path)
        self._identity = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Check that the path still leads to the directory.

        Raises:
            StorageError: it was moved, removed or replaced; nothing is made in its place.
        """
        try:
            found = os.lstat(self.path)
            why = "another directory lies there now"
        except OSError as error:
            found, why = None, error.strerror or str(error)
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise StorageError(
                "the run's directory was moved or removed while the run was at work",
                where=str(self.path),
                why=why,
                fix="nothing is written anew in its place; move it back, and `nitro resume` goes on from its last "
                "checkpoint",
            )

    def close(self) -> None:
        """Let go of it; twice is no error."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
