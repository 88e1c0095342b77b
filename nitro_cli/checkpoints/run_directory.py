"""Claiming a run's directory, and from where a run may be continued."""

from __future__ import annotations

import secrets
from pathlib import Path

from nitro_cli.errors import IncompatibleError

from .entries import Manifest, ManifestEntry, latest_entry
from .names import CHECKPOINTS

__all__ = ["check_newest", "new_run_directory"]


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
