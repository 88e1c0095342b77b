"""The run on disk as the processes see it that only write their pieces of arrays; the main process does all else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from nitro_cli.checkpoints import ArrayPieces, PartWriter, read_manifest
from nitro_cli.distributed.processes import main_says
from nitro_cli.distributed.shared_writing import directory_of_main, reporter
from nitro_cli.errors import NitroError

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
        self._parts = PartWriter(jax.process_index())

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """The run's committed checkpoints, as the directory tells."""
        return read_manifest(self.root).of_run(self.id)

    def admits(self, epoch: int, score: float | None, *, step: int = 0) -> bool:
        """The main process's answer, after the save in flight."""
        self.wait()
        return bool(main_says(None))

    def save(self, arrays: Mapping[str, Any]) -> Path:
        """Write this process's pieces in the background, where the main process has begun the checkpoint.

        Raises:
            StorageError: the pieces of the save before could not be written.
        """
        pieces = {path: leaf for path, leaf in arrays.items() if isinstance(leaf, ArrayPieces)}
        if pieces:
            self.wait()
            temporary = directory_of_main(self.path)
            self._parts.write(temporary, pieces, reporter(temporary))
        return self.path

    def write_info(self, document: Mapping[str, Any]) -> None:
        """Nothing: the main process writes."""

    def check_disk(self, *_: Any) -> None:
        """Nothing: the main process checks."""

    def set_status(self, status: str) -> None:
        """Nothing: the main process writes."""

    def wait(self) -> None:
        """Wait for this process's part of the save in flight.

        Raises:
            StorageError: it could not be written; raised once.
        """
        self._parts.wait()

    def close(self) -> None:
        """Wait for the save in flight and let go.

        Raises:
            StorageError: this process's part of it could not be written.
        """
        self.closed = True
        self.wait()

    def discard(self) -> None:
        """Let go of a run that the main process removes."""
        with contextlib.suppress(NitroError):
            self.close()


class UnwrittenHistory:
    """Stands in for the history file."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Nothing: the main process writes."""

    def close(self) -> None:
        """Nothing to close."""
