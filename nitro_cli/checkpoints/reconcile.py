"""Bringing manifest and disk together after a kill: what is gone, what is not listed, what was left to delete."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nitro_cli.errors import IncompatibleError, IntegrityError, LockedError, NitroWarning, StorageError

from .durable import remove_tree
from .entries import Manifest, ManifestEntry, RunInfo
from .locks import RunLock, run_is_locked
from .manifest import MANIFEST_FILE, present_names
from .names import CHECKPOINTS, RUN_ID, contained_path, is_checkpoint_name, is_stray_name
from .record import RecordInfo, record_info
from .retention import Retention

__all__ = [
    "entry_of_record",
    "passed_by_adopted",
    "remove_displaced",
    "remove_strays",
    "remove_strays_of_dead_runs",
    "run_info_from_disk",
    "unlisted_runs",
    "warn_about_unlisted",
    "with_disk",
    "without_entries",
]

RUN_FILE = "run.json"


def entry_of_record(info: RecordInfo, run: str) -> ManifestEntry | None:
    """The manifest entry of a record that lies in the `checkpoints/` of a run; None if no run wrote it there."""
    if not info.entry:
        return None
    try:
        entry = ManifestEntry.from_json({"path": "", "run": run, **info.entry})
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"the record of {info.path.name} does not say where it stands in its run",
            where=str(info.path),
            why=f"{type(error).__name__}: {error}",
        ) from error
    written = entry.written or info.written
    return replace(entry, path=f"{run}/{CHECKPOINTS}/{info.path.name}", run=run, written=written)


def with_disk(root: Path, manifest: Manifest, run: str) -> Manifest:
    """The manifest with one run as it is on disk: entries that are gone dropped, unlisted records adopted.

    A record is unlisted when the process was killed between publishing it and writing the manifest. One that is
    damaged is not adopted, with a warning. Nothing on disk is changed.
    """
    names = present_names(root, {run})[run]
    listed = manifest.of_run(run)
    info = manifest.runs.get(run) or run_info_from_disk(root, run)
    doomed = {path.rsplit("/", 1)[-1] for path in info.displaced}
    unlisted = names - {entry.name for entry in listed} - doomed
    adopted: list[ManifestEntry] = []
    for name in sorted(unlisted):
        try:
            record = record_info(root / run / CHECKPOINTS / name)
            entry = entry_of_record(record, run)
        except (IntegrityError, IncompatibleError) as error:
            warnings.warn(f"a checkpoint that no manifest lists cannot be used: {error}", NitroWarning, stacklevel=2)
            continue
        if entry is not None:
            adopted.append(entry)
            info = _filled_from(info, record)
    adopted.sort(key=lambda e: (e.written, e.step))
    gone = {entry.path for entry in listed if entry.name not in names}
    if not gone and not adopted and run in manifest.runs:
        return manifest
    entries = (*(entry for entry in manifest.entries if entry.path not in gone), *adopted)
    return replace(manifest.with_run(info), entries=entries)


def passed_by_adopted(
    old: Manifest, found: Manifest, start: ManifestEntry | None, retention: Retention | None
) -> tuple[str, ...]:
    """What rotation would have deleted for records that were published, but not listed, when the process died.

    Args:
        old: the manifest as it was.
        found: with the run as it is on disk.
        start: the run's newest checkpoint, if it was loaded, and so verified: only then may older ones go.
        retention: the run's rule.
    """
    known = {entry.path for entry in old.entries}
    if start is None or retention is None or all(entry.path in known for entry in found.of_run(start.run)):
        return ()
    gone = retention.displaced(found.entries, start.run, live=lambda other: True)
    return tuple(entry.path for entry in gone if entry.path != start.path)


def without_entries(manifest: Manifest, paths: Iterable[str]) -> Manifest:
    """The manifest without the entries of these paths."""
    gone = set(paths)
    return replace(manifest, entries=tuple(entry for entry in manifest.entries if entry.path not in gone))


def unlisted_runs(root: Path, known: Collection[str]) -> list[str]:
    """Runs that lie in a directory with checkpoints, are at work nowhere, and that its manifest does not list.

    Args:
        root: the directory of the runs.
        known: ids of those that the manifest lists.
    """
    found = []
    try:
        folders = [p for p in root.iterdir() if RUN_ID.fullmatch(p.name) and p.name not in known and not p.is_symlink()]
        for folder in folders:
            checkpoints = folder / CHECKPOINTS
            records = checkpoints.iterdir() if checkpoints.is_dir() else ()
            if any(is_checkpoint_name(p.name) and p.is_dir() for p in records) and not run_is_locked(folder):
                found.append(folder.name)
    except OSError:
        # They are only told: what cannot be listed is told by whoever needs it.
        return []
    return sorted(found)


def warn_about_unlisted(root: Path, known: Collection[str]) -> None:
    """Say which runs of a directory its manifest does not list, and how they are taken in; arguments as above."""
    lost = unlisted_runs(root, known)
    if lost:
        warnings.warn(
            f"{root} holds {len(lost)} run{'s' * (len(lost) != 1)} that its manifest does not list: "
            f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''}; `nitro runs {root} --rescan` takes them in",
            NitroWarning,
            stacklevel=3,
        )


def _filled_from(info: RunInfo, record: RecordInfo) -> RunInfo:
    """What the manifest and run.json do not say of a run, from a record of it."""
    facts = record.entry
    return replace(
        info,
        experiment=info.experiment or str(facts.get("experiment") or ""),
        preset=info.preset if info.preset is not None else facts.get("preset"),
        seed=info.seed if info.seed is not None else facts.get("seed"),
        parent=info.parent if info.parent is not None else facts.get("parent"),
    )


def run_info_from_disk(root: Path, run: str) -> RunInfo:
    """What can be said of a run that the manifest does not have, from its run.json and its newest record."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((root / run / RUN_FILE).read_bytes())
        facts = found if isinstance(found, dict) else {}
    known = {key: facts.get(key) for key in ("experiment", "preset", "status", "parent", "seed", "created")}
    if not isinstance(known["experiment"], (str, type(None))):
        known["experiment"] = str(known["experiment"])
    try:
        return RunInfo.from_json(run, known)
    except (TypeError, ValueError):
        return RunInfo(run, status="interrupted")


def remove_displaced(root: Path, manifest: Manifest, displaced: Iterable[str]) -> None:
    """Delete checkpoints that retention displaced; one that cannot be deleted stays for the next start, said.

    What the manifest still lists is never deleted, and nothing outside the `checkpoints/` of a run.
    """
    retained = {entry.path for entry in manifest.entries}
    for relative in displaced:
        parts = relative.split("/")
        plain = len(parts) == 3 and RUN_ID.fullmatch(parts[0]) and parts[1] == CHECKPOINTS
        path = contained_path(root, relative, root / MANIFEST_FILE)
        if relative in retained or not plain:
            continue
        try:
            remove_tree(path)
        except OSError as error:
            warnings.warn(f"{path} is no longer kept and could not be deleted: {error}", NitroWarning, stacklevel=2)


def remove_strays(run_path: Path) -> None:
    """Delete what a killed writer of this run left; only the holder of the run's lock may."""
    for folder in (run_path, run_path / CHECKPOINTS):
        if not folder.is_dir():
            continue
        for item in folder.iterdir():
            if is_stray_name(item.name) or item.name.startswith(f".{RUN_FILE}.tmp-"):
                try:
                    remove_tree(item)
                except OSError as error:
                    warnings.warn(f"the left-over {item} could not be deleted: {error}", NitroWarning, stacklevel=2)


def remove_strays_of_dead_runs(root: Path, manifest: Manifest) -> None:
    """Delete what killed writers of other runs left: of those that are listed as running and that no process holds.

    A run killed before its first checkpoint is never reopened, so its own next start would never come.
    """
    for run, info in manifest.runs.items():
        path = root / run
        if info.status != "running" or not path.is_dir() or run_is_locked(path):
            continue
        lock = RunLock(path)
        try:
            lock.acquire(0)
        except (LockedError, StorageError):
            continue
        try:
            remove_strays(path)
        finally:
            lock.release()
