"""Finding the checkpoint, or those to average, that a name means."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.errors import (
    CheckpointNotFoundError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    RunNotFoundError,
    nearest,
    warn,
)
from nitro_cli.text import user_path

from .average_source import average_source
from .entries import Manifest, ManifestEntry, latest_entry
from .locks import run_is_locked
from .manifest import read_manifest
from .names import CHECKPOINTS, RUN_ID
from .reconcile import tell_adopted, tell_corrected, with_disk, with_records
from .record_metadata import RECORD_FILE, record_entry, record_info
from .references import AverageRef, CheckpointRef
from .retention import warn_about_mixed
from .source_names import What, check_path, named_pair, placed_pair
from .summaries import RunSummary, best_entry, summarize

__all__ = ["resolve_resume", "resolve_source"]

_SHOWN_RUNS = 8


def resolve_source(
    spec: Any, root: Path | str, *, metric: str | None = None, mode: str | None = None, what: What = "weights"
) -> CheckpointRef | AverageRef:
    """Find the checkpoint that a `weights` or `resume` value names.

    Args:
        spec: a path (text or Path) of a checkpoint; text `run:checkpoint`, with its directory `dir:run:checkpoint` or
            `dir:checkpoint`; or a pair `(run, checkpoint)`. A run is `latest`, `all` (with `best`), or an id or a
            unique prefix of one. A checkpoint is `latest`, `best`, the name of one or its beginning, or for weights an
            `Average`, as text `average(last(10))`.
        root: the directory of runs that pairs are looked up in; paths are not relative to it.
        metric, mode: what `best` ranks by; None takes the pair of the newest scored entry.
        what: which keyword it is for; a resume refuses an average.

    Raises:
        ConfigError: the value has no such form; the form to use instead is named.
        RunNotFoundError, CheckpointNotFoundError: nothing of that name; the directory and its runs are named.
        IntegrityError, IncompatibleError, StorageError: the manifest or the record cannot be read.
    """
    pair = named_pair(spec, what)
    if pair is not None:
        return _pair_source(*pair, user_path(root), metric, mode, what)
    placed = placed_pair(spec, what)
    if placed is not None:
        return _pair_source(placed.run, placed.checkpoint, placed.root, metric, mode, what)
    check_path(spec, what)
    return _path_source(user_path(os.fspath(spec)))


def resolve_resume(
    spec: Any, root: Path | str, *, metric: str | None = None, mode: str | None = None
) -> CheckpointRef | None:
    """Find the checkpoint that a `resume` value names, or None for a fresh start.

    Args:
        spec: None or False for a fresh start; "auto" for the newest checkpoint of the directory's newest run, or a
            fresh start with a warning when there is none; anything else as `resolve_source`.
        root, metric, mode: as `resolve_source`.

    Raises:
        As `resolve_source`. With "auto", IntegrityError also where the directory has checkpoints of which the manifest
            lists none: damaged ones, or those of a lost manifest. They are no reason to start fresh.
    """
    if spec is None or spec is False:
        return None
    if spec == "auto":
        base = user_path(root)
        manifest = _current_manifest(base, tell=False) if os.path.isdir(base) else Manifest()
        if not manifest.entries:
            _check_nothing_left(base, manifest)
            warn(f'resume="auto": {base} holds nothing to resume, starting fresh')
            return None
        spec = ("latest", "latest")
    found = resolve_source(spec, root, metric=metric, mode=mode, what="resume")
    assert isinstance(found, CheckpointRef)
    return found


def _check_nothing_left(root: Path, manifest: Manifest) -> None:
    """Refuse a fresh start beside checkpoints that no manifest lists, unless a run at work is writing them."""
    doomed = {path for info in manifest.runs.values() for path in info.displaced}
    left = [
        item.relative_to(root).as_posix()
        for item in sorted(root.glob(f"*/{CHECKPOINTS}/*"))
        if RUN_ID.fullmatch(item.parts[-3])
        and not item.name.startswith(".")
        and item.is_dir()
        and item.relative_to(root).as_posix() not in doomed
        and not run_is_locked(root / item.parts[-3])
    ]
    if left:
        names = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
        raise IntegrityError(
            "there are checkpoints, but none that can be resumed",
            where=str(root),
            why=f"the manifest lists none of {names}: they are damaged, or the manifest is lost",
            fix=f"`nitro runs {root} --rescan` takes in those that are whole; to start fresh, name another directory",
        )


def _path_source(path: Path) -> CheckpointRef:
    if path.name == RECORD_FILE:
        path = path.parent
    info = record_info(path)
    where = Path(os.path.realpath(path))
    if where.parent.name == CHECKPOINTS and RUN_ID.fullmatch(where.parent.parent.name):
        root, run = where.parent.parent.parent, where.parent.parent.name
        relative = f"{run}/{CHECKPOINTS}/{where.name}"
        try:
            manifest = _current_manifest(root)
        except IntegrityError as error:
            # The record itself is whole: a broken manifest beside it only means that a resume branches.
            warn(f"{root}: the manifest cannot be used: {error.why}")
            manifest = Manifest()
        listed = next((e for e in manifest.of_run(run) if e.path == relative), None)
        if listed is not None:
            return CheckpointRef.of_entry(root, listed, "path", manifest)
    found = record_entry(path, str(info.entry["run"])) if info.entry else None
    entry = None if found is None else found[0]
    epoch, step = (entry.epoch, entry.step) if entry else (info.meta.epoch, info.meta.step)
    return CheckpointRef(
        path=path,
        root=None,
        run=None,
        entry=None,
        request="path",
        newest=False,
        epoch=int(epoch or 0),
        step=int(step or 0),
        score=entry.score if entry else None,
    )


def _current_manifest(root: Path, *, tell: bool = True) -> Manifest:
    """The manifest, with what a process published but could not list any more; nothing is written."""
    manifest = listed = read_manifest(root)
    for run in listed.runs:
        if not run_is_locked(root / run):
            manifest = with_disk(root, manifest, run)
    if tell:
        tell_adopted(root, listed, manifest)
    return manifest


def _checked_manifest(root: Path, manifest: Manifest, runs: Iterable[str]) -> Manifest:
    """The manifest with the entries of these runs as their records have them; what differed is said."""
    told: list[str] = []
    for run in runs:
        manifest, differences = with_records(root, manifest, run)
        told += differences
    tell_corrected(root, told)
    return manifest


def _pair_source(
    run: str, checkpoint: Any, root: Path, metric: str | None, mode: str | None, what: What
) -> CheckpointRef | AverageRef:
    if not os.path.isdir(root):
        raise RunNotFoundError(
            f"no run to take {run}:{checkpoint} from", where=str(root), why="there is no such directory"
        )
    manifest = _current_manifest(root)
    summaries = summarize(root, manifest)
    chosen = None if run == "all" else _find_run(run, summaries, root)
    if what == "resume" or not manifest.sealed:
        manifest = _checked_manifest(root, manifest, manifest.runs if chosen is None else (chosen,))
    entries = manifest.entries if chosen is None else manifest.of_run(chosen)
    if checkpoint == "latest":
        newest = latest_entry(entries)
        if newest is None:
            raise _nothing(f"the run {chosen} has no checkpoint", root, summaries)
        return CheckpointRef.of_entry(root, newest, "latest", manifest)
    if checkpoint == "best":
        best = _best(entries, metric, mode, root, summaries)
        return CheckpointRef.of_entry(root, best, "best", manifest)
    if isinstance(checkpoint, str):
        return CheckpointRef.of_entry(root, _named(checkpoint, entries, root, summaries), "path", manifest)
    return average_source(checkpoint, chosen or "", entries, root, metric, mode, manifest)


def _last_commit(summary: RunSummary) -> tuple[int, float]:
    """When a run committed its newest checkpoint: its sequence; the clock decides only where nothing was counted."""
    return max((entry.sequence, entry.written) for entry in summary.checkpoints)


def _find_run(run: str, summaries: Sequence[RunSummary], root: Path) -> str:
    """The whole id of the run that `latest` or a prefix names."""
    if run == "latest":
        with_checkpoints = [s for s in summaries if s.checkpoints]
        if not with_checkpoints:
            raise _nothing("no run has a checkpoint", root, summaries, RunNotFoundError)
        return max(with_checkpoints, key=_last_commit).id
    matching = [s.id for s in summaries if s.id.startswith(run)]
    if len(matching) > 1:
        raise ConfigError(
            f"{run!r} begins the ids of {len(matching)} runs",
            where=str(root),
            why=", ".join(sorted(matching)),
            fix="give more digits",
        )
    if not matching:
        close = nearest(run, [s.id for s in summaries])
        raise _nothing(f"there is no run {run!r}", root, summaries, RunNotFoundError, close)
    return matching[0]


def _nothing(
    message: str,
    root: Path,
    summaries: Sequence[RunSummary],
    kind: type[NotFoundError] = CheckpointNotFoundError,
    close: Sequence[str] = (),
) -> NotFoundError:
    """The error for what is not there: it lists the runs that are."""
    if not summaries:
        return kind(message, where=str(root), why="no run has written to this directory", nearest=close)
    shown = []
    for summary in summaries[:_SHOWN_RUNS]:
        held = f"epochs {', '.join(map(str, summary.epochs[-6:]))}" if summary.epochs else "no checkpoints"
        shown.append(f"{summary.id} ({summary.status}, {held})")
    more = f", and {len(summaries) - _SHOWN_RUNS} more" if len(summaries) > _SHOWN_RUNS else ""
    return kind(
        message,
        where=str(root),
        why=f"the directory holds {', '.join(shown)}{more}",
        fix=f"`nitro runs {root}` lists them",
        nearest=close,
    )


def _named(name: str, entries: Sequence[ManifestEntry], root: Path, summaries: Sequence[RunSummary]) -> ManifestEntry:
    """The entry of a name or of the only one that begins like it."""
    found = [e for e in entries if e.name == name] or [e for e in entries if e.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = [e.name for e in entries]
    close = [e.name for e in found[:5]] or nearest(name, [*names, "best", "latest", "average(last(10))"])
    message = f"{len(found)} checkpoints begin with {name}" if found else f"there is no checkpoint {name}"
    raise _nothing(message, root, summaries, close=close)


def _best(
    entries: Sequence[ManifestEntry],
    metric: str | None,
    mode: str | None,
    root: Path,
    summaries: Sequence[RunSummary],
) -> ManifestEntry:
    best = best_entry(tuple(entries), metric, mode)
    if best is None:
        scored = [e for e in entries if e.score is not None]
        pairs = sorted({f"{e.metric} ({e.mode})" for e in scored})
        asked = "" if metric is None else f" under {metric} ({mode})"
        message = f"no checkpoint has a finite score{asked}"
        if pairs:
            message += f"; there are scores under {', '.join(pairs)}"
        raise _nothing(message, root, summaries)
    warn_about_mixed(entries, best.metric, best.mode, root)
    return best
