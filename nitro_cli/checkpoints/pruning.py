"""Deleting checkpoints on request: what a rule no longer keeps, and what kills and damage left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import NotFoundError, warn
from nitro_cli.text import user_path

from .durable import remove_tree, tree_size
from .entries import Manifest, ManifestEntry
from .locks import RunLock, run_is_locked
from .manifest import MANIFEST_FILE, load_manifest, update_manifest
from .names import CHECKPOINTS, QUARANTINED, RUN_ID, contained_path, is_stray_name
from .retention import Retention
from .summaries import best_entry
from .transient import storage_error

if TYPE_CHECKING:
    from nitro_cli.experiment import Selector

__all__ = ["Prunable", "prune"]


@dataclass(frozen=True, slots=True)
class Prunable:
    """Something that `prune` deletes.

    Attributes:
        path: the directory.
        run: id of the run it lies in.
        size: bytes on disk.
        reason: "not kept", "quarantined" or "left over".
        epoch, step: of a checkpoint.
    """

    path: Path
    run: str
    size: int
    reason: str
    epoch: int | None = None
    step: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The form in `nitro checkpoint prune --json`."""
        return {
            "path": str(self.path),
            "run": self.run,
            "size": self.size,
            "reason": self.reason,
            "epoch": self.epoch,
            "step": self.step,
        }


def prune(
    path: Path | str,
    *,
    keep: Sequence[Selector] | None = None,
    metric: str | None = None,
    mode: str | None = None,
    delete: bool = False,
) -> list[Prunable]:
    """List what can be deleted of a run or a directory of runs, and delete it when told to.

    Quarantined checkpoints and what killed writers left always count. With `keep`, so do the checkpoints that none
    of its selectors picks, run by run; the newest one with a finite score and a run's newest resume point stay.
    Runs at work are left alone, with a warning.

    Args:
        path: a run's directory, or the directory of several.
        keep: selectors, as in `Checkpointer(keep=...)`.
        metric, mode: what selectors rank by; None takes the pair of each run's newest scored checkpoint.
        delete: False only lists.

    Returns:
        What would be deleted, or was.

    Raises:
        NotFoundError: `path` is neither.
        StorageError: something could not be deleted.
        IntegrityError: a link is on the way to what would be deleted, or the manifest is damaged.
    """
    place = user_path(path)
    if (place / CHECKPOINTS).is_dir() and RUN_ID.fullmatch(place.name):
        root, chosen = place.parent, [place.name]
    elif place.is_dir():
        root = place
        folders = (p for p in place.iterdir() if RUN_ID.fullmatch(p.name) and not p.is_symlink())
        chosen = sorted(p.name for p in folders if (p / CHECKPOINTS).is_dir())
    else:
        raise NotFoundError("there is no run to prune", where=str(place), why="there is no such directory")
    found: list[Prunable] = []
    for run in chosen:
        found += _prune_run(root, run, None if keep is None else tuple(keep), metric, mode, delete)
    return found


def _prune_run(
    root: Path, run: str, keep: tuple[Selector, ...] | None, metric: str | None, mode: str | None, delete: bool
) -> list[Prunable]:
    contained_path(root, f"{run}/{CHECKPOINTS}", root / MANIFEST_FILE)
    if run_is_locked(root / run):
        warn(f"the run {run} is being trained and is left alone")
        return []
    if not delete:
        return _left_over(root, run) + _not_kept(root, run, load_manifest(root), keep, metric, mode)
    lock = RunLock(root / run)
    lock.acquire()
    try:
        doomed: list[Prunable] = []

        def without(old: Manifest) -> Manifest:
            doomed[:] = _not_kept(root, run, old, keep, metric, mode)
            paths = {item.path for item in doomed}
            kept = tuple(e for e in old.entries if root / e.path not in paths)
            return replace(old, entries=kept) if doomed else old

        if keep is not None:
            update_manifest(root, without)
        items = _left_over(root, run) + doomed
        for item in items:
            # Looked at again: it may have become a link since it was listed.
            remove_tree(contained_path(root, item.path.relative_to(root).as_posix(), root / MANIFEST_FILE))
    except OSError as error:
        raise storage_error(error, "a checkpoint could not be deleted", root / run) from error
    finally:
        lock.release()
    return items


def _left_over(root: Path, run: str) -> list[Prunable]:
    items = []
    for item in sorted((root / run / CHECKPOINTS).iterdir()):
        if QUARANTINED.search(item.name):
            items.append(Prunable(item, run, tree_size(item), "quarantined"))
        elif is_stray_name(item.name):
            items.append(Prunable(item, run, tree_size(item), "left over"))
    manifest = load_manifest(root)
    info, retained = manifest.runs.get(run), {entry.path for entry in manifest.entries}
    for relative in () if info is None else info.displaced:
        path = contained_path(root, relative, root / MANIFEST_FILE)
        # Never what is still listed, nor a checkpoint of another run while a process works on that.
        owner = relative.split("/", 1)[0]
        if relative in retained or (owner != run and run_is_locked(root / owner)):
            continue
        if path.is_dir():
            items.append(Prunable(path, run, tree_size(path), "left over"))
    return items


def _not_kept(
    root: Path,
    run: str,
    manifest: Manifest,
    keep: tuple[Selector, ...] | None,
    metric: str | None,
    mode: str | None,
) -> list[Prunable]:
    if keep is None:
        return []
    if metric is None:
        best: ManifestEntry | None = best_entry(manifest.of_run(run))
        metric, mode = (best.metric, best.mode) if best else (None, None)
    gone = Retention(keep, metric, mode).displaced(manifest.entries, run)
    return [
        Prunable(root / e.path, run, tree_size(root / e.path), "not kept", e.epoch, e.step)
        for e in gone
        if (root / e.path).is_dir()
    ]
