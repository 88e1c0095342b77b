"""Files that are whole or absent, whenever the process is killed."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from nitro_cli.text import open_regular

__all__ = ["file_digest", "remove_tree", "tree_size"]

_BLOCK = 1 << 20


def file_digest(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Size in bytes and SHA-256 (hex) of a file; `sync` also makes its content durable.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    with open(open_regular(path, os.O_RDONLY, follow=False), "rb", buffering=0) as file:
        block = bytearray(_BLOCK)
        view = memoryview(block)
        while count := file.readinto(block):
            digest.update(view[:count])
            size += count
        if sync:
            os.fsync(file.fileno())
    return size, digest.hexdigest()


def remove_tree(path: Path) -> None:
    """Delete a directory with all it holds, or a file; one that is not there is no error.

    A directory is renamed to a dotted name first, so that a kill in the middle leaves a stray to clean, never
    half a checkpoint under its own name.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    doomed = path
    if not path.name.startswith("."):
        doomed = path.with_name(f".deleting-{secrets.token_hex(4)}-{path.name}"[:200])
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            return
    shutil.rmtree(doomed, ignore_errors=False)


def tree_size(path: Path) -> int:
    """Bytes in the files of a directory, or of one file; links are not followed."""
    total = 0
    for base, _, names in os.walk(path):
        for name in names:
            info = os.lstat(os.path.join(base, name))
            if stat.S_ISREG(info.st_mode):
                total += info.st_size
    if not path.is_dir():
        total = path.lstat().st_size
    return total
