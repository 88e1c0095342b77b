"""Rebuilding a directory's manifest from the checkpoints in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nitro_cli.errors import IncompatibleError, IntegrityError, RunNotFoundError, warn
from nitro_cli.text import user_path

from .entries import Manifest, ManifestEntry, RunInfo
from .locks import run_is_locked
from .manifest import MANIFEST_FILE, load_manifest, update_manifest
from .names import CHECKPOINTS, RUN_ID
from .reconcile import tell_corrected, with_disk, with_records, written_order
from .run_file import RUN_FILE

__all__ = ["rescan"]


def rescan(directory: Path | str) -> Manifest:
    """Write the manifest anew from the records on disk, for one that is lost, damaged or out of date.

    A damaged manifest.json is kept as `manifest.json.corrupt-<n>`. Damaged checkpoints are left out; these, what was
    listed and is gone, and what the manifest said otherwise than the records, are warned about.

    Args:
        directory: the directory of the runs.

    Returns:
        The manifest as written.

    Raises:
        RunNotFoundError: there is no such directory.
        IncompatibleError: the manifest is of a newer nitro; it is not touched.
        StorageError: it cannot be written.
    """
    root = user_path(directory)
    if not root.is_dir():
        raise RunNotFoundError("there is no such directory of runs", where=str(root))
    return update_manifest(root, lambda old: _rebuilt(root, old), base=_what_is_known)


def _what_is_known(root: Path) -> Manifest:
    try:
        return load_manifest(root)
    except IncompatibleError:
        raise
    except IntegrityError as error:
        path = root / MANIFEST_FILE
        kept = quarantine_path(path)
        os.rename(path, kept)
        warn(f"the damaged manifest is kept as {kept.name}: {error.why}")
        return Manifest()


def _rebuilt(root: Path, old: Manifest) -> Manifest:
    manifest = old
    for folder in sorted(root.iterdir()):
        run = folder.name
        if not RUN_ID.fullmatch(run) or folder.is_symlink() or not folder.is_dir():
            continue
        if run in old.runs or (folder / RUN_FILE).is_file() or _has_records(folder):
            manifest, differences = with_records(root, with_disk(root, manifest, run), run)
            tell_corrected(root, differences)
    runs = {run: info for run, info in manifest.runs.items() if (root / run).is_dir()}
    entries = tuple(entry for entry in manifest.entries if entry.run in runs)
    entries = tuple(sorted(entries, key=written_order))
    _tell_dropped(root, old, runs, entries)
    filled = {run: _filled(root, info, entries) for run, info in runs.items()}
    rebuilt = Manifest(filled, entries, manifest.counted)
    return replace(rebuilt, sequence=rebuilt.counted + 1)


def _tell_dropped(root: Path, old: Manifest, runs: Mapping[str, RunInfo], entries: Sequence[ManifestEntry]) -> None:
    """Say which runs and checkpoints the manifest listed and the disk does not hold."""
    kept = {entry.path for entry in entries}
    dropped = [f"the run {run}" for run in old.runs if run not in runs]
    dropped += [entry.path for entry in old.entries if entry.path not in kept and entry.run in runs]
    if dropped:
        warn(f"{root / MANIFEST_FILE} listed what is gone from the disk and lists it no longer: {', '.join(dropped)}")


def _has_records(folder: Path) -> bool:
    checkpoints = folder / CHECKPOINTS
    return checkpoints.is_dir() and not checkpoints.is_symlink() and any(checkpoints.iterdir())


def _filled(root: Path, info: RunInfo, entries: tuple[ManifestEntry, ...]) -> RunInfo:
    """Facts that run.json did not have, from the run's newest record; a run with none of its own is not running."""
    own = [e for e in entries if e.run == info.id]
    if own:
        newest = own[-1]
        written = max(info.written, newest.written)
        sequence = max(info.sequence, newest.sequence)
        parent = info.parent or newest.parent
        status = info.status
        if status == "interrupted" and newest.stop_reason:
            status = newest.stop_reason
        info = replace(info, written=written, parent=parent, status=status, sequence=sequence)
    if info.status == "running" and not run_is_locked(root / info.id):
        info = replace(info, status="interrupted")
    return info


def quarantine_path(path: Path) -> Path:
    """The first free `<name>.corrupt-<n>` beside `path`."""
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.corrupt-{number}")):
        number += 1
    return path.with_name(f"{path.name}.corrupt-{number}")
