"""One user's day with the shipped experiment, in an empty directory: train, look, evaluate, predict, go on, average."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Average, Last, average_checkpoints, checkpoint_info
from nitro_cli.checkpoints import read_record


@dataclass
class Day:
    """What the commands said, in the order they were given."""

    folder: Path
    train: Any
    runs: Any
    rows: list[dict[str, Any]]
    history: str
    evaluate: Any
    predict: Any
    resume: Any
    average: Any
    runs_after: Any


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, command: Any, document: Any) -> Day:
    folder = tmp_path_factory.mktemp("day")
    images = np.random.default_rng(0).random((7, 784), np.float32)
    np.savez(folder / "new.npz", image=images)
    return Day(
        folder=folder,
        train=command("train", "MnistMLP", "--preset", "smoke", cwd=folder),
        runs=document("runs", cwd=folder),
        rows=document("history", cwd=folder)["rows"],
        history=command("history", "runs/MnistMLP", cwd=folder).stdout,
        evaluate=document("evaluate", "runs/MnistMLP", "--split", "test", cwd=folder),
        predict=command("predict", "--input", "new.npz", "--output", "out.npz", cwd=folder),
        resume=document("resume", "runs/MnistMLP", "--max-epochs", 3, cwd=folder),
        average=document("average", "runs/MnistMLP", "--select", "last(2)", "--evaluate", "test", cwd=folder),
        runs_after=document("runs", cwd=folder),
    )


def place(folder: Path, path: str) -> Path:
    """Where a checkpoint is that a document names relative to the working directory or to the run directory."""
    return next(found for root in (folder, folder / "runs" / "MnistMLP") if (found := root / path).is_dir())


def test_training_ends_with_the_history_the_place_and_the_next_commands(day: Day) -> None:
    (run,) = day.runs["runs"]
    assert "history of MnistMLP" in day.train.stdout
    assert run["id"] in day.train.stderr
    for advice in ("nitro resume", "nitro evaluate"):
        assert advice in day.train.stderr
    for epoch in (1, 2):
        assert f"epoch {epoch}/2" in day.train.stderr


def test_runs_and_history_tell_what_was_trained(day: Day) -> None:
    (run,) = day.runs["runs"]
    assert run["experiment"] == "MnistMLP"
    assert (run["preset"], run["status"], run["epochs"]) == ("smoke", "completed", [1, 2])
    assert [row["epoch"] for row in day.rows] == [1, 2]
    assert [row["step"] for row in day.rows] == [55, 110]
    scores = [row["macro_recall"] for row in day.rows]
    assert run["best"]["score"] == max(scores)
    assert run["best"]["metric"] == "macro_recall"
    assert f"{max(scores):.4f}" in day.history
    assert all(place(day.folder, one["path"]).is_dir() for one in run["checkpoints"])


def test_two_short_epochs_of_a_narrow_net_are_better_than_chance(day: Day) -> None:
    assert day.evaluate["split"] == "test"
    assert day.evaluate["experiment"] == "MnistMLP"
    assert day.evaluate["metrics"]["acc"] > 0.2
    best = day.runs["runs"][0]["best"]["checkpoint"]
    assert place(day.folder, day.evaluate["checkpoint"]) == place(day.folder, best)


def test_prediction_writes_one_row_of_logits_per_image(day: Day) -> None:
    with np.load(day.folder / "out.npz") as out:
        assert out["outputs"].shape == (7, 10)
        assert np.isfinite(out["outputs"]).all()


def test_going_on_for_an_epoch_continues_the_same_run(day: Day) -> None:
    assert day.resume["run"] == day.runs["runs"][0]["id"]
    assert (day.resume["epoch"], day.resume["step"], day.resume["stop_reason"]) == (3, 165, "completed")
    assert day.resume["compiles"] == 0
    (run,) = [run for run in day.runs_after["runs"] if run["id"] == day.resume["run"]]
    assert run["epochs"] == [1, 2, 3]


def test_the_average_is_the_mean_of_the_last_two_and_reads_digits_too(day: Day) -> None:
    root = day.folder / "runs" / "MnistMLP"
    (run,) = [run for run in day.runs_after["runs"] if run["id"] == day.resume["run"]]
    last = sorted(run["checkpoints"], key=lambda c: c["epoch"])[-2:]
    arrays = [read_record(place(day.folder, one["path"])).arrays for one in last]
    again = average_checkpoints(root, day.resume["run"], Average(Last(2)))
    wanted = {
        k: np.mean([a[k].astype(np.float64) for a in arrays], axis=0) for k in arrays[0] if k.startswith("params/")
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(again.arrays[name], value, rtol=1e-6, atol=1e-7)
    assert "'acc'" in str(day.average)


def test_the_record_says_what_it_was_trained_with(day: Day) -> None:
    root = day.folder / "runs" / "MnistMLP"
    (newest,) = root.glob(f"{day.resume['run']}/**/epoch-0003*")
    meta = checkpoint_info(newest).meta
    assert meta.preset == "smoke"
    assert meta.fields["graphconst"]["width"] == 16
    assert meta.fields["host"]["max_epochs"] == 3
