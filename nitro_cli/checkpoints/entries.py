"""What the manifest holds: one entry per retained checkpoint, one line per run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Manifest", "ManifestEntry", "RunInfo", "latest_entry"]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One retained checkpoint.

    Attributes:
        path: relative POSIX path of its directory, from the directory of the runs.
        run: id of the run that wrote it.
        epoch: the epoch in progress, or just ended.
        step: optimizer steps taken.
        score: the value of `metric` it is ranked by; None when unscored.
        metric, mode: what the score measures, and whether "min" or "max" is better.
        written: when, in seconds since 1970.
        resume_point: written inside an epoch or by a stop; outside the selectors.
        stop_reason: why the run ended here, if it did.
        parent: of a branched run, the checkpoint it was resumed from.
        sequence: larger than that of every checkpoint that was listed in its directory before; no clock is in it. 0 in
            records of versions that did not count.
    """

    path: str
    run: str
    epoch: int
    step: int
    score: float | None = None
    metric: str | None = None
    mode: str | None = None
    written: float = 0.0
    resume_point: bool = False
    stop_reason: str | None = None
    parent: str | None = None
    sequence: int = 0

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def finite(self) -> bool:
        """Whether it has a score, and a finite one."""
        return self.score is not None and math.isfinite(self.score)

    def scored_under(self, metric: str | None, mode: str | None) -> bool:
        """Whether its score may be compared under this metric and mode; an entry with no metric always may."""
        return self.metric is None or (self.metric, self.mode) == (metric, mode)

    def as_json(self) -> dict[str, Any]:
        """The form in manifest.json and record.json: a score that is not finite is null, its name beside it."""
        document: dict[str, Any] = {
            "path": self.path,
            "run": self.run,
            "epoch": self.epoch,
            "step": self.step,
            "score": self.score if self.score is None or self.finite else None,
            "metric": self.metric,
            "mode": self.mode,
            "written": self.written,
            "resume_point": self.resume_point,
            "stop_reason": self.stop_reason,
            "parent": self.parent,
            "sequence": self.sequence,
        }
        if self.score is not None and not self.finite:
            document["nonfinite"] = {"score": str(float(self.score))}
        return document


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What the manifest says of one run.

    Attributes:
        id: eight hexadecimal digits.
        experiment: import path or name of the experiment.
        preset: name of the preset, if one was claimed.
        status: "running", or the stop reason.
        parent: of a branched run, the checkpoint it was resumed from.
        seed: the run's seed.
        created, written: when it began and when it last wrote, in seconds since 1970.
        displaced: paths of checkpoints that retention displaced and whose deletion may not have ended.
        sequence: the directory's counter when the run last wrote; 0 in manifests of versions that did not count.
    """

    id: str
    experiment: str = ""
    preset: str | None = None
    status: str = "running"
    parent: str | None = None
    seed: int | None = None
    created: float = 0.0
    written: float = 0.0
    displaced: tuple[str, ...] = ()
    sequence: int = 0

    def as_json(self) -> dict[str, Any]:
        """The form in manifest.json."""
        return {
            "experiment": self.experiment,
            "preset": self.preset,
            "status": self.status,
            "parent": self.parent,
            "seed": self.seed,
            "created": self.created,
            "written": self.written,
            "displaced": list(self.displaced),
            "sequence": self.sequence,
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of one manifest.json.

    Attributes:
        runs: by id.
        entries: in the order they were committed.
        sequence: counts what was written to the directory; every record and run carries its value.
        sealed: whether the file carried a digest of its own, as all but those of earlier versions do.
    """

    runs: dict[str, RunInfo] = field(default_factory=dict)
    entries: tuple[ManifestEntry, ...] = ()
    sequence: int = 0
    sealed: bool = field(default=True, compare=False)

    def of_run(self, run: str) -> tuple[ManifestEntry, ...]:
        """The entries of one run, in the order they were committed."""
        return tuple(entry for entry in self.entries if entry.run == run)

    def with_run(self, info: RunInfo) -> Manifest:
        """The manifest with one run added or replaced."""
        return replace(self, runs={**self.runs, info.id: info})

    def with_write(self, info: RunInfo) -> Manifest:
        """The manifest after a run has written: `with_run`, its counter and the run's raised above all before."""
        sequence = 1 + max(self.counted, info.sequence)
        return replace(self.with_run(replace(info, sequence=sequence)), sequence=sequence)

    @property
    def counted(self) -> int:
        """The largest sequence in it."""
        known = (item.sequence for items in (self.entries, self.runs.values()) for item in items)
        return max(self.sequence, max(known, default=0))

    def without_run(self, run: str) -> Manifest:
        """The manifest without one run and its entries."""
        runs = {name: info for name, info in self.runs.items() if name != run}
        return replace(self, runs=runs, entries=tuple(entry for entry in self.entries if entry.run != run))


def latest_entry(entries: tuple[ManifestEntry, ...] | list[ManifestEntry]) -> ManifestEntry | None:
    """The newest of one run's entries, resume points included: the most steps, then the last committed."""
    newest: ManifestEntry | None = None
    for entry in entries:
        if newest is None or (entry.step, entry.epoch) >= (newest.step, newest.epoch):
            newest = entry
    return newest
