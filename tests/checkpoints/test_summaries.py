from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import ManifestEntry, RunStore, best_entry, runs
from nitro_cli.experiment import Best, Checkpointer, Every


def entry(epoch: int, score: float | None, metric: str = "loss", mode: str = "min") -> ManifestEntry:
    return ManifestEntry(f"aaaaaaaa/checkpoints/e{epoch}", "aaaaaaaa", epoch, epoch, score, metric, mode, float(epoch))


def test_runs_are_listed_with_what_they_keep_the_newest_first(tmp_path: Path, make_run: Any) -> None:
    old = make_run(tmp_path, [3, 1, 2, 4], keep=(Best(2),))
    new = make_run(tmp_path, [0.5], metric="acc", mode="max", status="early_stop")
    first, second = runs(tmp_path)
    assert (first.id, first.status, first.epochs) == (new, "early_stop", (1,))
    assert (second.id, second.experiment, second.preset, second.epochs) == (old, "pkg.mod:Toy", "base", (2, 3))
    assert second.best is not None
    assert (second.best.score, second.best.metric, second.best.mode) == (1.0, "loss", "min")


def test_running_with_a_free_lock_reads_as_interrupted(tmp_path: Path) -> None:
    run = RunStore.create(tmp_path, experiment="Toy", checkpointer=Checkpointer())
    assert runs(tmp_path)[0].status == "running"
    run.close()
    assert runs(tmp_path)[0].status == "interrupted"
    run = RunStore.reopen(tmp_path, run.id)
    run.set_status("completed")
    run.close()
    assert runs(tmp_path)[0].status == "completed"


def test_listing_runs_creates_no_file(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1.0], status="running")
    (tmp_path / run / ".lock").unlink()
    before = sorted(tmp_path.rglob("*"))
    assert runs(tmp_path)[0].status == "interrupted"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_json_of_a_run_has_the_documented_keys_and_plain_numbers(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [math.nan, 2.0], keep=(Every(1),))
    document = json.loads(json.dumps(runs(tmp_path)[0].as_json(), allow_nan=False))
    needed = {"id", "experiment", "preset", "status", "epochs", "best", "checkpoints", "parent", "written"}
    assert needed <= document.keys()
    assert document["best"].keys() == {"score", "metric", "mode", "checkpoint"}
    assert document["best"]["checkpoint"] == document["checkpoints"][1]["path"]
    assert {"path", "epoch", "step", "score"} <= document["checkpoints"][0].keys()
    assert document["checkpoints"][0]["score"] is None
    assert document["checkpoints"][0]["nonfinite"] == {"score": "nan"}


@pytest.mark.parametrize(
    ("entries", "metric", "mode", "expected"),
    [
        ([entry(1, 3.0), entry(2, 1.0), entry(3, 2.0)], None, None, 2),
        ([entry(1, 3.0, mode="max"), entry(2, 1.0, mode="max")], None, None, 1),
        ([entry(1, math.nan), entry(2, 5.0), entry(3, math.inf)], None, None, 2),
        ([entry(1, math.nan)], None, None, None),
        ([entry(1, None)], None, None, None),
        ([], None, None, None),
        ([entry(1, 0.1), entry(2, 9.0, "acc", "max")], None, None, 2),
        ([entry(1, 0.1), entry(2, 9.0, "acc", "max")], "loss", "min", 1),
        ([entry(1, 0.1)], "acc", "max", None),
        ([entry(1, 1.0), entry(2, 1.0)], None, None, 1),
    ],
)
def test_the_best_is_finite_and_under_one_metric(
    entries: list[ManifestEntry], metric: str | None, mode: str | None, expected: int | None
) -> None:
    best = best_entry(entries, metric, mode)
    assert (best.epoch if best else None) == expected
