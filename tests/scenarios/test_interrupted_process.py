"""A scheduler or a person stops the process in the middle; run again, the result is that of an uninterrupted run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import read_manifest, read_record

STORY = '''
"""Three classes of points, and a signal to this very process while batch 20 is built."""

import os
import signal

from nitro_cli import ArrayBatches, Checkpointer, EMA
from tests.tiny import Quick, points


def build(batch, rng):
    wanted = os.environ.get("STORY_SIGNAL")
    if wanted:
        build.count += 1
        if build.count == 20:
            os.kill(os.getpid(), getattr(signal, wanted))
    return {**batch, "x": batch["x"] + rng.normal(0, 0.1, batch["x"].shape).astype("float32")}


build.count = 0


class Story(Quick):
    """Dropout, momentum, an average and random augmentation."""

    accum = 2
    max_epochs = 4
    ema = EMA(0.9)
    checkpointer = Checkpointer(keep=("last(4)",))

    def build_data(self, dist):
        return {
            "train": ArrayBatches(points(96, 1), 8, shuffle=True, transform=build),
            "val": ArrayBatches(points(51, 2), 8),
        }
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("story")
    (folder / "story.py").write_text(STORY)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path, command: Any) -> Path:
    """The run directory of the uninterrupted run."""
    command("train", "story.py:Story", "--run-dir", "whole", cwd=folder)
    return folder / "whole"


def last_record(root: Path) -> Any:
    newest = max(read_manifest(root).entries, key=lambda entry: entry.step)
    return read_record(root / newest.path)


def test_sigterm_exits_75_and_the_resumed_run_equals_the_uninterrupted_one(
    folder: Path, whole: Path, command: Any, document: Any
) -> None:
    stopped = command("train", "story.py:Story", "--run-dir", "parts", cwd=folder, code=75, STORY_SIGNAL="SIGTERM")
    assert "the state is saved" in stopped.stderr
    assert "nitro resume" in stopped.stderr
    cut = last_record(folder / "parts").meta
    assert cut.stop_reason is None or cut.stop_reason == "requested"
    assert 0 < cut.step < 24
    resumed = document("resume", "parts", cwd=folder)
    assert (resumed["stop_reason"], resumed["epoch"], resumed["step"]) == ("completed", 4, 24)
    one, other = last_record(whole), last_record(folder / "parts")
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name
    for fact in ("history", "metrics", "epoch_loss", "rules", "step"):
        assert getattr(one.meta, fact) == getattr(other.meta, fact)
    logs = [next(root.glob("*/metrics.jsonl")).read_text().splitlines() for root in (whole, folder / "parts")]
    lines = [[json.loads(line) for line in log] for log in logs]
    kept = [[line for line in log if line.get("context") in ("train", "validate")] for log in lines]
    assert kept[0] == kept[1]


def test_ctrl_c_exits_130_and_says_that_the_state_is_saved(folder: Path, command: Any) -> None:
    stopped = command("train", "story.py:Story", "--run-dir", "c", cwd=folder, code=130, STORY_SIGNAL="SIGINT")
    assert "Ctrl-C" in stopped.stderr
    assert "the state is saved" in stopped.stderr
    assert [run.status for run in read_manifest(folder / "c").runs.values()] == ["requested"]


def test_another_directory_reaches_the_same_run(folder: Path, whole: Path, document: Any, tmp_path: Path) -> None:
    there = document("validate", whole, "--experiment", f"{folder / 'story.py'}:Story", cwd=tmp_path)
    assert there["metrics"]["acc"] == max(row["acc"] for row in last_record(whole).meta.history)
    assert list(tmp_path.iterdir()) == []
