"""The run on disk as the processes see it that do not write it: the same questions, answered by the main process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.checkpoints import read_manifest
from nitro_cli.run.processes import main_says

if TYPE_CHECKING:
    from nitro_cli.checkpoints import ManifestEntry

__all__ = ["FollowedStore", "UnwrittenHistory"]


class FollowedStore:
    """Stands in for `RunStore` in every process but the main one; each question is one that the main one asks too.

    Attributes:
        root, id, path: as the main process made them.
        closed: whether the run was let go of.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root = root
        self.id = run_id
        self.path = root / run_id
        self.closed = False

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """The run's committed checkpoints, as the directory tells."""
        return read_manifest(self.root).of_run(self.id)

    def admits(self, epoch: int, score: float | None, *, step: int = 0) -> bool:
        """The main process's answer."""
        return bool(main_says(None))

    def save(self, *_: Any, **__: Any) -> Path:
        """Nothing: the main process writes."""
        return self.path

    def write_info(self, document: Mapping[str, Any]) -> None:
        """Nothing: the main process writes."""

    def check_disk(self, *_: Any) -> None:
        """Nothing: the main process checks."""

    def set_status(self, status: str) -> None:
        """Nothing: the main process writes."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Let go."""
        self.closed = True

    discard = close


class UnwrittenHistory:
    """Stands in for the history file."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Nothing: the main process writes."""

    def close(self) -> None:
        """Nothing to close."""
