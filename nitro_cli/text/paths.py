"""Paths as a person writes them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_utf8", "user_path"]


def is_utf8(path: str | os.PathLike[str]) -> bool:
    """Whether a path is text that UTF-8 can hold: a file system also has names that are not."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path with a leading `~` or `~name` replaced by that home directory.

    A shell does this only where `~` begins a word, which it does not in `--run-dir=~/a`, a preset or a Python string.
    A `~` anywhere else is a character like any other, and so is one that names nobody.
    """
    return Path(os.path.expanduser(path))
