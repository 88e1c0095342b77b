"""manifest.json: every retained checkpoint and run of a directory, read without JAX and changed under a lock."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nitro_cli.errors import IntegrityError, RunNotFoundError, warn
from nitro_cli.installation import nitro_version
from nitro_cli.text import IrregularFileError, parse_json, read_regular, user_path, write_atomically

from . import migrations
from .entries import Manifest
from .json_text import BLANK_DIGEST, is_sealed, seal
from .locks import manifest_lock
from .names import CHECKPOINTS, contained_path, is_checkpoint_name
from .transient import storage_error, with_retry

__all__ = ["MANIFEST_FILE", "present_names", "read_manifest", "update_manifest"]

MANIFEST_FILE = "manifest.json"
_LOOKS = 3
_MOST_BYTES = 1 << 28
_UNSEALED_FORMAT = 1
_DAMAGED = "the manifest is damaged"


def read_manifest(directory: Path | str) -> Manifest:
    """Read which runs and checkpoints a directory holds, without opening a checkpoint.

    Entries whose checkpoint is gone from the disk are left out, with a warning where their run is still there.

    Args:
        directory: the directory that several runs share, such as `runs/MnistMLP`.

    Returns:
        The manifest; an empty one for a directory that no run has written to.

    Raises:
        RunNotFoundError: there is no such directory.
        IntegrityError: the manifest is damaged, was changed, or lists what is no checkpoint of a run below it.
        IncompatibleError: a newer nitro wrote it.
        StorageError: it cannot be read.
    """
    root = user_path(directory)
    if not root.is_dir():
        raise RunNotFoundError("there is no such directory of runs", where=str(root))
    for _ in range(_LOOKS):
        manifest = load_manifest(root)
        present = present_names(root, {entry.run for entry in manifest.entries})
        gone = [entry for entry in manifest.entries if entry.name not in present[entry.run]]
        # A run at work may have rotated them away between the two looks; then its manifest has changed too.
        if not gone:
            break
    # A run that somebody removed whole is not missed at every reading; `verify` and `rescan` tell of it.
    missed = [entry for entry in gone if (root / entry.run).is_dir()]
    if missed:
        shown = ", ".join(entry.path for entry in missed[:3]) + (", ..." if len(missed) > 3 else "")
        warn(f"{root / MANIFEST_FILE} lists {len(missed)} checkpoint(s) that are gone from the disk: {shown}")
    if gone:
        lost = {entry.path for entry in gone}
        manifest = replace(manifest, entries=tuple(e for e in manifest.entries if e.path not in lost))
    return manifest


def load_manifest(root: Path) -> Manifest:
    """Read manifest.json alone, without a look at the checkpoints; errors as `read_manifest`."""
    path = root / MANIFEST_FILE
    try:
        read = functools.partial(read_regular, path, limit=_MOST_BYTES, follow=False)
        content = with_retry(read, f"reading {path}")
    except FileNotFoundError:
        return Manifest()
    except IrregularFileError as error:
        raise _damaged(path, str(error.strerror)) from error
    except OSError as error:
        raise storage_error(error, "the manifest could not be read", path) from error
    try:
        document = parse_json(content)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(document, dict):
        raise _damaged(path, "it is not a JSON object")
    written_format = document.get("format")
    document = migrations.migrated(document, migrations.MANIFEST_FORMAT, migrations.MANIFEST_MIGRATIONS, path)
    sealed = written_format != _UNSEALED_FORMAT
    if sealed and not is_sealed(content):
        raise _damaged(path, "its text does not match the digest it carries: it was changed since nitro wrote it")
    from nitro_cli.text.documents import check_document

    from .documents import ManifestDocument

    found = check_document(ManifestDocument, document, path, what=_DAMAGED, fix=_fix(path))
    return found.manifest(sealed=sealed)


def _fix(path: Path) -> str:
    return f"rebuild it from the checkpoints: `nitro runs {path.parent} --rescan`"


def _damaged(path: Path, why: str) -> IntegrityError:
    return IntegrityError(_DAMAGED, where=str(path), why=why, fix=_fix(path))


def present_names(root: Path, runs: set[str]) -> dict[str, set[str]]:
    """Names of the checkpoint directories on disk, per run; one listing of each run's `checkpoints/`.

    Raises:
        IntegrityError: a run, its `checkpoints/` or a checkpoint is a link.
    """
    names: dict[str, set[str]] = {}
    for run in runs:
        folder = contained_path(root, f"{run}/{CHECKPOINTS}", root / MANIFEST_FILE)
        found: set[str] = set()
        try:
            with os.scandir(folder) as listing:
                for item in listing:
                    if not is_checkpoint_name(item.name):
                        continue
                    if item.is_symlink():
                        contained_path(root, f"{run}/{CHECKPOINTS}/{item.name}", root / MANIFEST_FILE)
                    if item.is_dir(follow_symlinks=False):
                        found.add(item.name)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise storage_error(error, "the checkpoints could not be listed", folder) from error
        names[run] = found
    return names


def update_manifest(
    root: Path,
    change: Callable[[Manifest], Manifest],
    *,
    base: Callable[[Path], Manifest] = load_manifest,
    sleep: Callable[[float], None] | None = None,
) -> Manifest:
    """Change the manifest under its lock: read, change, write whole.

    Args:
        root: the directory of the runs.
        change: takes the manifest that is there and returns the new one; called once.
        base: stands in for reading the manifest that is there.
        sleep: stands in for `time.sleep` between tries.

    Returns:
        The manifest as written.

    Raises:
        StorageError: it cannot be written; the old one stays.
        IntegrityError, IncompatibleError: the manifest that is there cannot be read.
    """
    path = root / MANIFEST_FILE
    with manifest_lock(root):
        _remove_strays(root)
        old = base(root)
        new = change(old)
        if new is old and path.exists():
            return old
        content = dump_manifest(new)
        try:
            with_retry(lambda: write_atomically(path, content), f"writing {path}", sleep=sleep)
        except OSError as error:
            raise storage_error(error, "the manifest could not be written", path) from error
    return new


def dump_manifest(manifest: Manifest) -> bytes:
    """The text of manifest.json: one line per run and per entry, for a reader and for `diff`; with its own digest."""
    document: dict[str, Any] = {
        "sha256": BLANK_DIGEST,
        "format": migrations.MANIFEST_FORMAT,
        "framework": nitro_version(),
        "sequence": manifest.counted,
    }
    head = json.dumps(document, allow_nan=False)[:-1]
    runs = ",\n".join(
        f"  {json.dumps(run)}: {json.dumps(info.as_json(), allow_nan=False)}" for run, info in manifest.runs.items()
    )
    entries = ",\n".join(f"  {json.dumps(entry.as_json(), allow_nan=False)}" for entry in manifest.entries)
    return seal(f'{head},\n "runs": {{\n{runs}\n }},\n "entries": [\n{entries}\n ]}}\n')


def _remove_strays(root: Path) -> None:
    """Delete what killed writers of the manifest left; only the holder of its lock may."""
    for stray in root.glob(f".{MANIFEST_FILE}.tmp-*"):
        # What is no file of nitro's is left alone.
        with contextlib.suppress(IsADirectoryError, PermissionError):
            stray.unlink(missing_ok=True)
