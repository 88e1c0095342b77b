"""A run's directory taken by a process: made for a new run, or locked and mended for one that goes on."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nitro_cli.errors import RunNotFoundError

from .entries import ManifestEntry, RunInfo
from .locks import RunLock
from .manifest import MANIFEST_FILE, load_manifest, update_manifest
from .names import CHECKPOINTS, RUN_ID, contained_path
from .reconcile import remove_displaced, remove_strays, remove_strays_of_dead_runs, taken_over, warn_about_unlisted
from .retention import Retention, warn_about_others
from .run_directory import new_run_directory
from .transient import storage_error

__all__ = ["begun", "taken_up"]

Sleep = Callable[[float], None]


def begun(base: Path, info: RunInfo, retention: Retention | None, sleep: Sleep | None) -> tuple[RunInfo, RunLock]:
    """Make the directory of a new run, with an id that no other has; `info` is without one. As `RunStore.create`."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        existing = load_manifest(base)
        run = new_run_directory(base, existing)
    except OSError as error:
        raise storage_error(error, "the run's directory could not be made", base) from error
    lock = RunLock(base / run)
    lock.acquire()
    try:
        manifest = update_manifest(base, lambda old: old.with_write(replace(info, id=run)), sleep=sleep)
        remove_strays_of_dead_runs(base, manifest)
        warn_about_unlisted(base, manifest.runs)
        if retention is not None:
            warn_about_others(manifest.entries, retention, run, base)
    except BaseException:
        lock.release()
        shutil.rmtree(base / run, ignore_errors=True)
        raise
    return manifest.runs[run], lock


def taken_up(
    base: Path, run_id: str, start: ManifestEntry | None, retention: Retention | None, sleep: Sleep | None
) -> tuple[RunInfo, RunLock]:
    """Lock the directory of a run that goes on, and clean up what a killed process left. As `RunStore.reopen`."""
    if not RUN_ID.fullmatch(run_id) or not (base / run_id).is_dir():
        raise RunNotFoundError(f"there is no run {run_id!r}", where=str(base))
    contained_path(base, f"{run_id}/{CHECKPOINTS}", base / MANIFEST_FILE)
    lock = RunLock(base / run_id)
    lock.acquire()
    try:
        remove_strays(base / run_id)
        take = functools.partial(taken_over, base, run=run_id, start=start, retention=retention)
        manifest = update_manifest(base, take, sleep=sleep)
        remove_displaced(base, manifest, manifest.runs[run_id].displaced)
        if retention is not None:
            warn_about_others(manifest.entries, retention, run_id, base)
    except BaseException:
        lock.release()
        raise
    return manifest.runs[run_id], lock
