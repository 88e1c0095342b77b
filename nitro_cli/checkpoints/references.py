"""What a source turns out to name: one checkpoint, or the ones to average."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .entries import Manifest, ManifestEntry, latest_entry

if TYPE_CHECKING:
    from nitro_cli.experiment import Average

__all__ = ["AverageRef", "CheckpointRef"]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """One checkpoint that a source names.

    Attributes:
        path: its directory.
        root: the directory of runs it lies in; None for a record outside of any.
        run: id of its run; None likewise.
        entry: what the manifest says of it; None for a record that no manifest lists.
        request: how it was named: "latest", "best" or "path". Only "latest" may fall back to an older one.
        newest: whether it is its run's newest checkpoint, so that a resume continues the run.
        epoch, step, score: where it stands.
    """

    path: Path
    root: Path | None
    run: str | None
    entry: ManifestEntry | None
    request: Literal["latest", "best", "path"]
    newest: bool
    epoch: int
    step: int
    score: float | None

    @property
    def run_path(self) -> Path | None:
        """The directory of its run; None for a record outside of any."""
        return None if self.root is None or self.run is None else self.root / self.run

    @classmethod
    def of_entry(
        cls, root: Path, entry: ManifestEntry, request: Literal["latest", "best", "path"], manifest: Manifest
    ) -> CheckpointRef:
        """The reference of a checkpoint that the manifest of `root` lists."""
        newest = latest_entry(manifest.of_run(entry.run))
        return cls(
            path=root / entry.path,
            root=root,
            run=entry.run,
            entry=entry,
            request=request,
            newest=newest is not None and newest.path == entry.path,
            epoch=entry.epoch,
            step=entry.step,
            score=entry.score,
        )

    def __str__(self) -> str:
        return str(self.path)

    def continues(self, root: Path | str) -> bool:
        """Whether a resume of it in the directory `root` continues its run, rather than branching a new one."""
        return self.newest and self.root is not None and os.path.realpath(self.root) == os.path.realpath(root)

    def parent_of_run_in(self, root: Path | str) -> str:
        """How a run in the directory `root` names it as its parent: a POSIX path relative to `root`."""
        return Path(os.path.relpath(os.path.realpath(self.path), os.path.realpath(root))).as_posix()


@dataclass(frozen=True, slots=True)
class AverageRef:
    """The checkpoints of one run whose average a source names.

    Attributes:
        root: the directory of runs.
        run: id of the run.
        average: the `Average`.
        refs: the checkpoints, ascending by step.
        state: the one of `refs` that gives the layer state.
    """

    root: Path
    run: str
    average: Average
    refs: tuple[CheckpointRef, ...]
    state: CheckpointRef

    def __str__(self) -> str:
        return f"{self.run}:{self.average}"
