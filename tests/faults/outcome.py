"""What a run came to, for comparing two of them bit for bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nitro_cli.checkpoints import RunSummary, read_manifest, read_record, runs

__all__ = ["Outcome", "assert_equal", "outcome"]


@dataclass(frozen=True)
class Outcome:
    """The last record of a run, and its files of lines without what may differ (times, waits, ends)."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    history: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    kept: list[str]


def outcome(root: Path, run: str | None = None) -> Outcome:
    """Read a run of the directory `root`, its newest when none is named, from its files alone."""
    summary = _summary(root, run)
    entries = [entry for entry in read_manifest(root).entries if entry.run == summary.id]
    last = max(entries, key=lambda entry: (entry.step, not entry.resume_point))
    record = read_record(root / last.path)
    facts = {
        name: record.meta.as_json()[name]
        for name in ("epoch", "step", "epoch_loss", "history", "metrics", "rules", "seed")
    }
    lines = [
        {key: value for key, value in line.items() if key not in ("time", "timestamp")}
        for line in _json_lines(root / summary.id / "metrics.jsonl")
        if line.get("context") in ("train", "validate")
    ]
    history = _json_lines(root / summary.id / "history.jsonl")
    return Outcome(record.arrays, facts, history, lines, sorted(entry.name for entry in entries))


def _summary(root: Path, run: str | None) -> RunSummary:
    return next(summary for summary in runs(root) if run is None or summary.id == run)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_equal(found: Outcome, expected: Outcome) -> None:
    """Weights, layer state, optimizer state, average, history, metrics, counters and lines are the same bits."""
    assert found.arrays.keys() == expected.arrays.keys()
    for path, array in expected.arrays.items():
        other = found.arrays[path]
        assert np.asarray(other).dtype == np.asarray(array).dtype, path
        assert np.asarray(other).tobytes() == np.asarray(array).tobytes(), path
    assert found.facts == expected.facts
    assert found.history == expected.history
    assert found.lines == expected.lines
    assert found.kept == expected.kept
