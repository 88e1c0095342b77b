"""Paths as a person writes them."""

from __future__ import annotations

import os
import reprlib
from pathlib import Path

from nitro_cli.errors import ConfigError

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
    A `~` anywhere else is a character like any other, and so is one that names nobody. A path that ends in `.` or `..`
    has no name of its own: it becomes the absolute path of the directory that it means, as a link to it is named.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ConfigError(
            f"{reprlib.repr(path)} is no path", why=f"it is a {type(path).__name__}", fix="give text or a Path"
        )
    given = Path(os.path.expanduser(path))
    if given.name not in ("", ".."):
        return given
    plain = Path(os.path.abspath(given))
    # The `..` of a link is where the link leads: there the text alone may name another directory, or none.
    if os.path.exists(given) and not (os.path.exists(plain) and os.path.samefile(plain, given)):
        return Path(os.path.realpath(given))
    return plain
