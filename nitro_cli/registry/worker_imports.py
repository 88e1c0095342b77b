"""Modules of a local directory, importable in the worker processes that a data loader starts."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from nitro_cli.errors import warn

__all__ = ["share_with_workers"]

_folder: Path | None = None


def share_with_workers(package: str, root: Path) -> None:
    """Let a spawned process import `package` from `root` by ordinary means.

    A spawned worker gets this process's `sys.path` and unpickles what it works on by module name; the name that a
    local directory has here is found there through a link in a folder at the end of the path.

    Args:
        package: the name the directory's modules have in this process.
        root: the directory.
    """
    try:
        folder = _links()
        if not (folder / package).is_symlink():
            (folder / package).symlink_to(root, target_is_directory=True)
    except OSError as problem:
        warn(f"worker processes cannot import the modules of {root}: {problem}; use thread workers, or install it")


def _links() -> Path:
    global _folder
    if _folder is None or not _folder.is_dir():
        _folder = Path(tempfile.mkdtemp(prefix="nitro-local-"))
        sys.path.append(str(_folder))
        atexit.register(_remove, _folder, os.getpid())
    return _folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not take the folder away
        shutil.rmtree(folder, ignore_errors=True)
