"""Loading what a source names; when the newest checkpoint of a run is damaged, the next older one, said."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from nitro_cli.errors import CheckpointNotFoundError, IntegrityError, StorageError, warn

from .entries import Manifest, ManifestEntry, latest_entry
from .manifest import MANIFEST_FILE, load_manifest, update_manifest
from .names import contained_path
from .rebuilding import quarantine_path
from .record import CheckpointRecord, read_record
from .references import CheckpointRef

__all__ = ["load_with_fallback", "quarantine", "without_quarantine"]

# How many may turn out gone: a run at work may delete each before it is read.
_MOST_GONE = 20

_sets_aside: ContextVar[bool] = ContextVar("sets_aside", default=True)


@contextlib.contextmanager
def without_quarantine() -> Iterator[None]:
    """While inside, `load_with_fallback` passes damaged checkpoints over and leaves them where they are."""
    before = _sets_aside.set(False)
    try:
        yield
    finally:
        _sets_aside.reset(before)


def load_with_fallback(
    ref: CheckpointRef, *, prefixes: Iterable[str] | None = None
) -> tuple[CheckpointRecord, CheckpointRef, int]:
    """Load a checkpoint, verified.

    When `ref` was named as a run's latest and does not verify, the next older one is taken, with a warning that says
    how many steps that loses, and what did not verify is quarantined (see `without_quarantine`). A checkpoint named by
    its path or as the best has no stand-in. Without a stand-in all stay where they are, so that asking again ends the
    same way and never as if there had been no run.

    Args:
        ref: from `resolve_source`.
        prefixes: as `read_record`.

    Returns:
        The record, the reference of what was loaded, and the number of optimizer steps lost (0 without a fallback).

    Raises:
        IntegrityError: it, or with `latest` every checkpoint of the run, does not verify.
        CheckpointNotFoundError: it is gone, or with `latest` each was deleted before it could be read.
        IncompatibleError, StorageError: as `read_record`.
    """
    if ref.request != "latest" or ref.root is None or ref.entry is None:
        return read_record(ref.path, prefixes=prefixes), ref, 0
    chosen = None if prefixes is None else tuple(prefixes)
    entry: ManifestEntry | None = ref.entry
    tried: set[str] = set()
    problems: list[str] = []
    damaged: list[ManifestEntry] = []
    while entry is not None and len(tried) - len(damaged) < _MOST_GONE:
        tried.add(entry.path)
        try:
            record = read_record(ref.root / entry.path, prefixes=chosen)
        except IntegrityError as error:
            problems.append(f"{entry.name}: {error.where}: {error.why}")
            damaged.append(entry)
        except CheckpointNotFoundError:
            # The run that is being trained has rotated it away since the manifest was read.
            problems.append(f"{entry.name}: it is gone")
        else:
            for other in damaged:
                _set_aside(ref.root, other)
            return record, *_used(ref, entry, problems)
        # Listed anew each time: a run that is being trained has newer ones by now.
        entry = latest_entry([e for e in load_manifest(ref.root).of_run(ref.entry.run) if e.path not in tried])
    if not damaged:
        raise CheckpointNotFoundError(
            f"the checkpoints of the run {ref.run} were deleted before they could be read",
            where=str(ref.root / (ref.run or "")),
            why="; ".join(problems),
            fix="where a process is training the run, wait until it ends",
        )
    raise IntegrityError(
        f"no checkpoint of the run {ref.run} verifies",
        where=str(ref.root / (ref.run or "")),
        why="; ".join(problems),
        fix="restore the directory from a copy, or start a new run",
    )


def _used(ref: CheckpointRef, entry: ManifestEntry, problems: list[str]) -> tuple[CheckpointRef, int]:
    assert ref.root is not None
    if not problems:
        return ref, 0
    lost = max(0, ref.step - entry.step)
    if entry.step < ref.step:
        warn(
            f"the newest checkpoint of the run {entry.run} cannot be used ({'; '.join(problems)}); going on from "
            f"{entry.name}, epoch {entry.epoch}: {lost} optimizer steps are lost"
        )
    used = replace(
        ref,
        path=ref.root / entry.path,
        entry=entry,
        newest=True,
        epoch=entry.epoch,
        step=entry.step,
        score=entry.score,
    )
    return used, lost


def _set_aside(root: Path, entry: ManifestEntry) -> None:
    if not _sets_aside.get():
        return
    try:
        quarantine(root, entry)
    except StorageError as error:
        warn(f"{entry.name} is damaged and could not be set aside: {error.why}")
    except OSError as error:
        warn(f"{entry.name} is damaged and could not be set aside: {error}")


def quarantine(root: Path, entry: ManifestEntry) -> Path:
    """Rename a damaged checkpoint to `<name>.corrupt-<n>` and take it out of the manifest; nothing is deleted.

    Returns:
        Where it is now.

    Raises:
        StorageError, OSError: the directory cannot be written.
        IntegrityError: a link is on the way.
    """
    path = contained_path(root, entry.path, root / MANIFEST_FILE)
    aside = quarantine_path(path)

    def without(old: Manifest) -> Manifest:
        # Under the manifest's lock, so that a run at work does not rotate it away in between.
        if os.path.lexists(path):
            os.rename(path, aside)
        return replace(old, entries=tuple(e for e in old.entries if e.path != entry.path))

    update_manifest(root, without)
    return aside
