"""Claiming a run's directory, and from where a run may be continued."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nitro_cli.errors import HookError, IncompatibleError

from .entries import Manifest, ManifestEntry, latest_entry
from .names import CHECKPOINTS, record_name

__all__ = ["check_newest", "new_record_path", "new_run_directory"]


def new_run_directory(root: Path, manifest: Manifest) -> str:
    """Make a run's directory under a new id: making it is what claims the id."""
    while True:
        run = secrets.token_hex(4)
        if run in manifest.runs:
            continue
        try:
            (root / run).mkdir()
        except FileExistsError:
            continue
        (root / run / CHECKPOINTS).mkdir()
        return run


def check_newest(manifest: Manifest, run: str, entry: ManifestEntry | None) -> None:
    """Check that a run is continued from its newest checkpoint, so that nothing later is overwritten.

    Raises:
        IncompatibleError: a newer one is there.
    """
    newest = latest_entry(manifest.of_run(run))
    if entry is None or newest is None or entry.path == newest.path:
        return
    raise IncompatibleError(
        f"the run {run} cannot be continued from {entry.name}",
        why=f"{newest.name} is newer, and would be overwritten",
        fix="begin a new run with this checkpoint as its parent",
    )


def new_record_path(run_path: Path, name: str, resume_point: bool) -> Path:
    """Where a run's next checkpoint goes.

    Args:
        run_path: the run's directory.
        name: as `checkpoint_filename` gave it.
        resume_point: it gets `-resume` behind its name.

    Raises:
        HookError: the name collides or leads outside.
    """
    folder = run_path / CHECKPOINTS
    safe = record_name(f"{name}-resume" if resume_point else name)
    path = folder / safe
    if resume_point:
        # A run stopped twice at one step writes the same state again, under a name of its own.
        count = 2
        while os.path.lexists(path):
            path = folder / f"{safe}-{count}"
            count += 1
    elif os.path.lexists(path):
        raise HookError(
            f"the run already has a checkpoint named {safe!r}",
            where="checkpoint_filename",
            why="it would be overwritten",
            fix="put the epoch and the step into the name",
        )
    return path
