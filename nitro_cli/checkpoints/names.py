"""Names and relative paths of checkpoints, and what keeps them inside their directory."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

from nitro_cli.errors import ConfigError, HookError, IntegrityError
from nitro_cli.text import is_utf8, visible

__all__ = [
    "RUN_ID",
    "check_run_dir_name",
    "component_problem",
    "contained_path",
    "is_checkpoint_name",
    "is_stray_name",
    "place_problem",
    "quarantined_records",
    "record_name",
    "relative_problem",
]

CHECKPOINTS = "checkpoints"
AVERAGES_DIR = "averages"
RUN_ID = re.compile(r"[0-9a-f]{8}")
QUARANTINED = re.compile(r"\.corrupt-\d+$")
_STRAYS = (".tmp-", ".deleting-")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_LONGEST = 180
_LONGEST_NAME = 255
_LONGEST_PATH = 4096 - 400
"""What systems take, less what a run adds: its id, a record's name, the files of its arrays."""


def check_run_dir_name(*directories: Path) -> None:
    """Check that a system takes the names of directories, and those of all that a run writes below them.

    Raises:
        ConfigError: one is not UTF-8, which a run's files are written in, or a part of it or the whole is too long.
    """
    for directory in directories:
        why = _name_problem(directory)
        if why is not None:
            shown = visible(str(directory))
            raise ConfigError(
                "a run cannot be written to a directory of this name",
                where=shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}...",
                why=why,
                fix="rename it, or work in and write to another",
            )


def _name_problem(directory: Path) -> str | None:
    if not is_utf8(directory):
        return "it is not UTF-8, in which a run's files name it"
    if "\0" in str(directory):
        return "it holds a null character"
    longest = max((len(os.fsencode(part)) for part in directory.parts), default=0)
    if longest > _LONGEST_NAME:
        return f"a part of it has {longest} bytes, and names have {_LONGEST_NAME} at most"
    whole = len(os.fsencode(os.path.abspath(directory)))
    if whole > _LONGEST_PATH:
        return f"its path has {whole} bytes, and the files of a run below it need it to have {_LONGEST_PATH} at most"
    return None


def record_name(name: str) -> str:
    """Turn the name that a `checkpoint_filename` hook returned into a safe name of one directory.

    Separators and characters that some file system refuses become `_` (a metric may be called `val/acc`); a very
    long name is cut and ended with its digest.

    Raises:
        HookError: the name is empty, starts with a dot, leads outside the directory, or has the form of a
            quarantined checkpoint.
    """
    if not isinstance(name, str) or not name.strip():
        raise _refused(name, "it is empty")
    parts = re.split(r"[/\\]", name)
    if ".." in parts or name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[/\\]", name):
        raise _refused(name, "it leads outside the checkpoint directory")
    safe = _UNSAFE.sub("_", name).rstrip(" .")
    if safe.startswith("."):
        raise _refused(name, "names that start with a dot are temporaries")
    if QUARANTINED.search(safe):
        raise _refused(name, "this is the name of a quarantined checkpoint")
    encoded = safe.encode("utf-8", "surrogatepass")
    if len(encoded) > _LONGEST:
        digest = hashlib.sha256(encoded).hexdigest()[:8]
        safe = f"{encoded[: _LONGEST - 9].decode('utf-8', 'ignore')}-{digest}"
    return safe


def _refused(name: object, why: str) -> HookError:
    return HookError(
        f"a checkpoint cannot be named {name!r}",
        where="checkpoint_filename",
        why=why,
        fix="return a plain file name, for instance 'epoch-0006-step-4500'",
    )


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory of this name, inside `checkpoints/`, can be a committed checkpoint."""
    return not name.startswith(".") and not QUARANTINED.search(name)


def quarantined_records(run_path: Path) -> list[Path]:
    """The damaged checkpoints of a run that were set aside as `<name>.corrupt-<n>`, by name."""
    try:
        found = [p for p in (run_path / CHECKPOINTS).iterdir() if QUARANTINED.search(p.name)]
        return sorted(p for p in found if p.is_dir() and not p.is_symlink())
    except OSError:
        return []


def is_stray_name(name: str) -> bool:
    """Whether this is the name of a temporary, or of a deletion that did not end."""
    return name.startswith(_STRAYS)


def component_problem(name: str) -> str | None:
    """Why a text is not the name of one file or directory, or None where it is."""
    if name in ("", ".", ".."):
        return f"has a part {name!r}"
    if any(character in name for character in "/\\\x00"):
        return "has a separator inside a name"
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        return f"has a name of more than {_LONGEST_NAME} bytes"
    return None


def relative_problem(path: str) -> str | None:
    """Why a text is not a plain relative POSIX path that stays below where it starts, or None where it is."""
    if path.startswith("/") or re.match(r"[A-Za-z]+:", path):
        return "leads outside: it is not relative"
    if ".." in path.split("/"):
        return "leads outside: it has a part '..'"
    return next(filter(None, map(component_problem, path.split("/"))), None)


def place_problem(path: str) -> str | None:
    """Why a text is not the place of a checkpoint in a directory of runs, `<run>/checkpoints/<name>`; None if it is."""
    problem = relative_problem(path)
    if problem is not None:
        return problem
    parts = path.split("/")
    if len(parts) != 3 or not RUN_ID.fullmatch(parts[0]) or parts[1] != CHECKPOINTS or parts[2].startswith("."):
        return f"is not the place of a checkpoint, <run>/{CHECKPOINTS}/<name>"
    return None


def contained_path(root: Path, relative: str, listed_in: Path) -> Path:
    """Return `root / relative`, after checking that it lies below `root` and that no link is on the way.

    Args:
        root: the directory.
        relative: a relative POSIX path, as manifests and records hold them.
        listed_in: the file that lists it, for the error.

    Raises:
        IntegrityError: the path is absolute, has `..`, a backslash or a drive, or it or a directory on the way is a
            link.
    """
    problem = relative_problem(relative)
    if problem is not None:
        raise _outside(root, relative, listed_in, f"it {problem}")
    path = root
    for part in relative.split("/"):
        path = path / part
        try:
            linked = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            # What is not there, or cannot be looked at, is told by whoever opens it.
            return root / relative
        if linked:
            raise _outside(root, relative, listed_in, f"{path} is a link, and nitro follows none below a run directory")
    return path


def _outside(root: Path, relative: str, listed_in: Path, why: str) -> IntegrityError:
    return IntegrityError(
        f"{listed_in.name} lists {relative!r}, which leads outside {root} or through a link",
        where=str(listed_in),
        why=why,
        fix="do not use this file unless you know who changed it; a manifest is rebuilt by `nitro runs DIR --rescan`",
    )
