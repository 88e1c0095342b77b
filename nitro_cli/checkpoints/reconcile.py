"""Bringing manifest and disk together after a kill: what is gone, what is not listed, what was left to delete."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nitro_cli.errors import IncompatibleError, IntegrityError, LockedError, NotFoundError, StorageError, warn

from .durable import remove_tree
from .entries import Manifest, ManifestEntry, RunInfo
from .locks import RunLock, run_is_locked
from .manifest import MANIFEST_FILE, present_names
from .names import CHECKPOINTS, RUN_ID, contained_path, is_checkpoint_name, is_stray_name, place_problem
from .record_metadata import record_entry
from .retention import Retention
from .run_directory import check_newest
from .run_file import RUN_FILE, read_run_file

if TYPE_CHECKING:
    from .documents import RecordEntry

__all__ = [
    "remove_displaced",
    "remove_strays",
    "remove_strays_of_dead_runs",
    "run_info_from_disk",
    "taken_over",
    "tell_adopted",
    "tell_corrected",
    "unlisted_runs",
    "warn_about_unlisted",
    "with_disk",
    "with_records",
    "without_entries",
    "written_order",
]


def with_disk(root: Path, manifest: Manifest, run: str) -> Manifest:
    """The manifest with one run as it is on disk: entries that are gone dropped, unlisted records adopted, both said.

    A record is unlisted when the process ended between publishing it and writing the manifest. One that is damaged is
    not adopted. Nothing on disk is changed.
    """
    names = present_names(root, {run})[run]
    listed = manifest.of_run(run)
    info = manifest.runs.get(run) or run_info_from_disk(root, run)
    # One run may have displaced checkpoints of another (`scope="dir"`).
    displaced = {path for other in manifest.runs.values() for path in other.displaced}
    doomed = {path.rsplit("/", 1)[-1] for path in displaced if path.startswith(f"{run}/")}
    unlisted = names - {entry.name for entry in listed} - doomed
    adopted: list[ManifestEntry] = []
    for name in sorted(unlisted):
        try:
            found = record_entry(root / run / CHECKPOINTS / name, run)
        except (IntegrityError, IncompatibleError) as error:
            warn(f"a checkpoint that no manifest lists cannot be used: {error}")
            continue
        if found is not None:
            adopted.append(found[0])
            info = _filled_from(info, found[1])
    adopted.sort(key=written_order)
    gone = {entry.path for entry in listed if entry.name not in names}
    if not gone and not adopted and run in manifest.runs:
        return manifest
    entries = (*(entry for entry in manifest.entries if entry.path not in gone), *adopted)
    return replace(manifest.with_run(info), entries=entries)


def tell_adopted(root: Path, before: Manifest, after: Manifest) -> None:
    """Say which checkpoints are taken in that the manifest did not list: their process ended before it could."""
    known = {entry.path for entry in before.entries}
    taken = [entry.path for entry in after.entries if entry.path not in known]
    if taken:
        warn(f"{root / MANIFEST_FILE} did not list {_some(taken)}: taken in, their process ended before it could")


def with_records(root: Path, manifest: Manifest, run: str) -> tuple[Manifest, list[str]]:
    """The manifest with the entries of one run as their records say, which are the truth; and what differed.

    A record that cannot be read is left to whoever loads it.
    """
    corrected: dict[str, ManifestEntry] = {}
    differences: list[str] = []
    for entry in manifest.of_run(run):
        try:
            found = record_entry(root / entry.path, run)
        except (IntegrityError, IncompatibleError, NotFoundError, StorageError):
            continue
        if found is not None and (difference := _difference(entry, found[0])):
            corrected[entry.path] = found[0]
            differences.append(f"{entry.path}: {difference}")
    if not corrected:
        return manifest, []
    return replace(manifest, entries=tuple(corrected.get(e.path, e) for e in manifest.entries)), differences


def tell_corrected(root: Path, differences: Sequence[str]) -> None:
    """Say where the manifest said otherwise than the records."""
    if differences:
        warn(f"{root / MANIFEST_FILE} says otherwise than the records, and the records are right: {_some(differences)}")


def written_order(entry: ManifestEntry) -> tuple[int, float, int]:
    """Key that sorts entries in the order they were committed; clocks decide only among those without a sequence."""
    return (entry.sequence, entry.written, entry.step)


def _difference(listed: ManifestEntry, held: ManifestEntry) -> str:
    """What a manifest says of a checkpoint otherwise than its record; empty where they agree."""
    parts = []
    for name in ("epoch", "step", "score", "metric", "mode", "resume_point", "sequence"):
        here, there = getattr(listed, name), getattr(held, name)
        if here != there and not (here != here and there != there):
            parts.append(f"{name} {here} here, {there} in the record")
    return ", ".join(parts)


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:3]) + (f", and {len(texts) - 3} more" if len(texts) > 3 else "")


def _passed_by_adopted(
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


def taken_over(
    root: Path, old: Manifest, *, run: str, start: ManifestEntry | None, retention: Retention | None
) -> Manifest:
    """The manifest after a process has taken over a run, as the disk and its records have it; ends what was begun.

    Args:
        root: the directory of the runs.
        old: the manifest as it was.
        run: id of the run, whose lock the caller holds.
        start: the checkpoint that training goes on from, once loaded; whoever named it has told what differs.
        retention: the run's rule.

    Raises:
        IncompatibleError: `start` is not the newest.
    """
    found, differences = with_records(root, with_disk(root, old, run), run)
    if start is None:
        tell_adopted(root, old, found)
        tell_corrected(root, differences)
    check_newest(found, run, start)
    info = found.runs[run]
    remove_displaced(root, found, info.displaced)
    gone = _passed_by_adopted(old, found, start, retention)
    info = replace(info, status="running", written=time.time(), displaced=gone)
    return without_entries(found.with_write(info), gone)


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
            records = checkpoints.iterdir() if checkpoints.is_dir() and not checkpoints.is_symlink() else ()
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
        warn(
            f"{root} holds {len(lost)} run{'s' * (len(lost) != 1)} that its manifest does not list: "
            f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''}; `nitro runs {root} --rescan` takes them in"
        )


def _filled_from(info: RunInfo, facts: RecordEntry) -> RunInfo:
    """What the manifest and run.json do not say of a run, from a record of it."""
    return replace(
        info,
        experiment=info.experiment or facts.experiment or "",
        preset=info.preset if info.preset is not None else facts.preset,
        seed=info.seed if info.seed is not None else facts.seed,
        parent=info.parent if info.parent is not None else facts.parent,
        sequence=max(info.sequence, facts.sequence),
    )


def run_info_from_disk(root: Path, run: str) -> RunInfo:
    """What can be said of a run that the manifest does not have, from its run.json; one that cannot be read is told."""
    file = root / run / RUN_FILE
    try:
        found = read_run_file(file)
    except FileNotFoundError:
        return RunInfo(run, status="interrupted")
    except (IntegrityError, OSError) as error:
        why = error.why if isinstance(error, IntegrityError) else error
        warn(f"{file} cannot be used, so less is known of the run: {why}")
        return RunInfo(run, status="interrupted")
    from .documents import RunFacts

    known = {key: found.get(key) for key in ("experiment", "preset", "status", "parent", "seed", "created")}
    return RunFacts.model_validate(known).info(run)


def remove_displaced(root: Path, manifest: Manifest, displaced: Iterable[str]) -> None:
    """Delete checkpoints that retention displaced; one that cannot be deleted stays for the next start, said.

    What the manifest still lists is never deleted, and nothing outside the `checkpoints/` of a run.
    """
    retained = {entry.path for entry in manifest.entries}
    for relative in displaced:
        if relative in retained or place_problem(relative) is not None:
            continue
        path = contained_path(root, relative, root / MANIFEST_FILE)
        try:
            remove_tree(path)
        except OSError as error:
            warn(f"{path} is no longer kept and could not be deleted: {error}")


def remove_strays(run_path: Path) -> None:
    """Delete what a killed writer of this run left; only the holder of the run's lock may.

    Raises:
        IntegrityError: the run or its `checkpoints/` is a link.
    """
    contained_path(run_path.parent, f"{run_path.name}/{CHECKPOINTS}", run_path / CHECKPOINTS)
    for folder in (run_path, run_path / CHECKPOINTS):
        if not folder.is_dir():
            continue
        for item in folder.iterdir():
            if is_stray_name(item.name) or item.name.startswith(f".{RUN_FILE}.tmp-"):
                try:
                    remove_tree(item)
                except OSError as error:
                    warn(f"the left-over {item} could not be deleted: {error}")


def remove_strays_of_dead_runs(root: Path, manifest: Manifest) -> None:
    """Delete what killed writers of other runs left: of those that are listed as running and that no process holds.

    A run killed before its first checkpoint is never reopened, so its own next start would never come.
    """
    for run, info in manifest.runs.items():
        path = root / run
        linked = path.is_symlink() or (path / CHECKPOINTS).is_symlink()
        if info.status != "running" or linked or not path.is_dir() or run_is_locked(path):
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
