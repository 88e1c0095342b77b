"""Names and relative paths of checkpoints, and what keeps them inside their directory."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath

from nitro_cli.errors import ConfigError, IntegrityError

__all__ = ["RUN_ID", "contained_path", "is_checkpoint_name", "is_stray_name", "quarantined_records", "record_name"]

CHECKPOINTS = "checkpoints"
RUN_ID = re.compile(r"[0-9a-f]{8}")
QUARANTINED = re.compile(r"\.corrupt-\d+$")
_STRAYS = (".tmp-", ".deleting-")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_LONGEST = 180


def record_name(name: str) -> str:
    """Turn the name that a `checkpoint_filename` hook returned into a safe name of one directory.

    Separators and characters that some file system refuses become `_` (a metric may be called `val/acc`); a very
    long name is cut and ended with its digest.

    Raises:
        ConfigError: the name is empty, starts with a dot, leads outside the directory, or has the form of a
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


def _refused(name: object, why: str) -> ConfigError:
    return ConfigError(
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
        return sorted(p for p in (run_path / CHECKPOINTS).iterdir() if QUARANTINED.search(p.name) and p.is_dir())
    except OSError:
        return []


def is_stray_name(name: str) -> bool:
    """Whether this is the name of a temporary, or of a deletion that did not end."""
    return name.startswith(_STRAYS)


def contained_path(root: Path, relative: str, listed_in: Path) -> Path:
    """Return `root / relative`, after checking that it stays inside `root`.

    Args:
        root: the directory.
        relative: a relative POSIX path, as manifests and records hold them.
        listed_in: the file that lists it, for the error.

    Raises:
        IntegrityError: the path is absolute, has `..`, a backslash or a drive, or a link on the way leads outside.
    """
    pure = PurePosixPath(relative)
    plain = relative and "\\" not in relative and "\x00" not in relative and ":" not in (pure.parts or ("",))[0]
    if not plain or pure.is_absolute() or ".." in pure.parts:
        raise _outside(root, relative, listed_in, "it is not a plain relative path")
    path = root / pure
    real = os.path.realpath(path)
    base = os.path.realpath(root)
    if real != base and not real.startswith(base.rstrip(os.sep) + os.sep):
        raise _outside(root, relative, listed_in, f"a link on the way leads to {real}")
    return path


def _outside(root: Path, relative: str, listed_in: Path, why: str) -> IntegrityError:
    return IntegrityError(
        f"{listed_in.name} lists {relative!r}, which leads outside {root}",
        where=str(listed_in),
        why=why,
        fix="do not use this file unless you know who changed it; a manifest is rebuilt by `nitro runs DIR --rescan`",
    )
