"""Writing an artefact whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nitro_cli.errors import IncompatibleError, StorageError
from nitro_cli.run import stop_again

__all__ = ["check_target", "new_directory", "new_file"]


def check_target(target: Path, *, force: bool) -> None:
    """Refuse an existing target, unless it is to be replaced."""
    if os.path.lexists(target) and not force:
        raise IncompatibleError(f"{target} already exists", fix="choose another name, or replace it with --force")


@contextmanager
def new_directory(target: Path, *, force: bool) -> Iterator[Path]:
    """A temporary directory that becomes `target` when the block ends well, and is gone when it does not.

    Raises:
        IncompatibleError: the target exists and `force` is not given.
        StorageError: the disk is full or read-only.
    """
    check_target(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _storage(error, target) from error
    try:
        os.chmod(temporary, 0o755)
        yield temporary
        stop_again()
        _swap(temporary, target)
    except OSError as error:
        raise _storage(error, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def new_file(target: Path, *, force: bool) -> Iterator[Path]:
    """The same for a single file: a temporary path to write, put in the target's place at the end."""
    check_target(target, force=force)
    if target.is_dir():
        raise IncompatibleError(f"{target} is a directory", fix="choose another name")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        stop_again()
        os.replace(temporary, target)
    except OSError as error:
        raise _storage(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)


def _swap(temporary: Path, target: Path) -> None:
    if not os.path.lexists(target):
        os.rename(temporary, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    os.rename(target, old / "replaced")
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(old / "replaced", target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _storage(error: OSError, target: Path) -> StorageError:
    what = "the disk is full" if error.errno == errno.ENOSPC else "the artefact could not be written"
    return StorageError(what, where=str(target), why=str(error), fix="free space, or export to another folder")
