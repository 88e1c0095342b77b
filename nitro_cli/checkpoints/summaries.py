"""The runs of a directory, from its manifest alone: no JAX, no checkpoint opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import IntegrityError
from nitro_cli.text import user_path

from .entries import Manifest, ManifestEntry, RunInfo
from .locks import run_is_locked
from .manifest import read_manifest
from .run_file import RUN_FILE, read_run_file

__all__ = ["RunSummary", "best_entry", "runs", "summarize"]

_STOP_CAUSES = ("sigint", "sigterm", "sigusr1", "max_time", "request")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run, as `runs` lists it.

    Attributes:
        id: eight hexadecimal digits.
        experiment: import path of the experiment that was trained, `module:Class` or `/path/file.py:Class`.
        preset: the name of its preset.
        status: "running", "interrupted" (it says it runs, and no process does), or the stop reason.
        epochs: of the checkpoints kept, ascending, each once.
        checkpoints: those kept, in the order they were committed; resume points included.
        best: the best scored one, under the metric and mode of the run's newest scored one; None if none is finite.
        parent: of a branched run, the checkpoint it was resumed from.
        written: when it last wrote, in seconds since 1970.
        created: when it began.
        seed: its seed.
        path: its directory.
        sequence: the directory's counter when it last wrote; what newest means.
    """

    id: str
    experiment: str
    preset: str | None
    status: str
    epochs: tuple[int, ...]
    checkpoints: tuple[ManifestEntry, ...]
    best: ManifestEntry | None
    parent: str | None
    written: float
    created: float
    seed: int | None
    path: Path
    sequence: int = 0

    @property
    def class_name(self) -> str:
        """The name of the experiment's class."""
        return self.experiment.rpartition(":")[2].rpartition(".")[2]

    @property
    def stop_cause(self) -> str | None:
        """What asked the run to stop: `sigint`, `sigterm`, `sigusr1`, `max_time`, `request`; None when nothing did.

        Also None where its run.json does not say, as those of earlier versions do not, or cannot be read.
        """
        if self.status != "requested":
            return None
        try:
            cause = read_run_file(self.path / RUN_FILE).get("stop_cause")
        except (OSError, IntegrityError):
            return None
        return cause if cause in _STOP_CAUSES else None

    def as_json(self) -> dict[str, Any]:
        """The form in `nitro runs --json`: `experiment` is the class's name, as in every other document."""
        return {
            "id": self.id,
            "experiment": self.class_name,
            "import_path": self.experiment or None,
            "preset": self.preset,
            "status": self.status,
            "epochs": list(self.epochs),
            "best": None if self.best is None else _best_json(self.best),
            "checkpoints": [_checkpoint_json(entry) for entry in self.checkpoints],
            "parent": self.parent,
            "written": self.written,
            "created": self.created,
            "seed": self.seed,
        }


def _best_json(entry: ManifestEntry) -> dict[str, Any]:
    return {"score": entry.score, "metric": entry.metric, "mode": entry.mode, "checkpoint": entry.path}


def _checkpoint_json(entry: ManifestEntry) -> dict[str, Any]:
    full = entry.as_json()
    keys = ("path", "epoch", "step", "score", "metric", "mode", "written", "resume_point", "stop_reason", "nonfinite")
    return {key: full[key] for key in keys if key in full}


def best_entry(
    entries: tuple[ManifestEntry, ...] | list[ManifestEntry], metric: str | None = None, mode: str | None = None
) -> ManifestEntry | None:
    """The entry with the best finite score; of equal ones the first committed.

    Args:
        entries: any number of them, resume points included.
        metric, mode: rank those scored under this pair; None takes the pair of the newest scored one.
    """
    scored = [entry for entry in entries if entry.score is not None and not entry.resume_point]
    if metric is None and scored:
        newest = max(enumerate(scored), key=lambda item: (item[1].sequence, item[0]))[1]
        metric, mode = newest.metric, newest.mode
    finite = [entry for entry in scored if entry.finite and entry.scored_under(metric, mode)]
    if not finite:
        return None
    sign = -1.0 if mode == "max" else 1.0
    return min(finite, key=lambda entry: sign * (entry.score or 0.0))


def runs(directory: Path | str) -> list[RunSummary]:
    """The runs of a directory, the one that wrote last first; clocks decide only among runs that did not count.

    Args:
        directory: the directory that several runs share, such as `runs/MnistMLP`.

    Returns:
        One summary per run that is there; none for a directory that no run has written to.

    Raises:
        RunNotFoundError, IntegrityError, IncompatibleError, StorageError: as `read_manifest`.
    """
    root = user_path(directory)
    return [summary for summary in summarize(root, read_manifest(root)) if summary.path.is_dir()]


def summarize(root: Path, manifest: Manifest) -> list[RunSummary]:
    """The runs of a manifest that is read already; result as `runs`."""
    by_run: dict[str, list[ManifestEntry]] = {run: [] for run in manifest.runs}
    for entry in manifest.entries:
        by_run.setdefault(entry.run, []).append(entry)
    summaries = [
        _summary(root, manifest.runs.get(run, RunInfo(run, status="interrupted")), entries)
        for run, entries in by_run.items()
    ]
    return sorted(summaries, key=lambda s: (s.sequence, s.written, s.created, s.id), reverse=True)


def _summary(root: Path, info: RunInfo, entries: list[ManifestEntry]) -> RunSummary:
    status = info.status
    if status == "running" and not run_is_locked(root / info.id):
        status = "interrupted"
    return RunSummary(
        id=info.id,
        experiment=info.experiment,
        preset=info.preset,
        status=status,
        epochs=tuple(sorted({entry.epoch for entry in entries})),
        checkpoints=tuple(entries),
        best=best_entry(entries),
        parent=info.parent,
        # A run that counts knows its last write, whatever its clock said before.
        written=info.written if info.sequence else max([info.written, *(entry.written for entry in entries)]),
        created=info.created,
        seed=info.seed,
        path=root / info.id,
        sequence=max([info.sequence, *(entry.sequence for entry in entries)]),
    )
