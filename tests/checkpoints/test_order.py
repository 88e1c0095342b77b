"""What is newest follows from the order of writing, whatever the clocks said."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import RecordMeta, RunStore, read_manifest, rescan, resolve_resume, resolve_source, runs
from nitro_cli.errors import NitroWarning
from nitro_cli.experiment import Checkpointer, Every

DAYS = 86400.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`clock(days)` sets the clock so many days ahead."""
    real = time.time
    return lambda days: monkeypatch.setattr(time, "time", lambda: real() + days * DAYS)


def newest(root: Path) -> str:
    ref = resolve_resume("auto", root)
    assert ref is not None
    assert runs(root)[0].id == ref.run
    assert str(resolve_source("latest:latest", root)) == str(ref.path)
    return ref.run or ""


def test_a_run_written_by_a_clock_ahead_is_not_the_newest_for_good(tmp_path: Path, make_run: Any, clock: Any) -> None:
    clock(400)
    make_run(tmp_path, [3, 1, 2])
    clock(0)
    later = make_run(tmp_path, [3])
    assert newest(tmp_path) == later


def test_the_order_survives_the_loss_of_the_manifest(tmp_path: Path, make_run: Any, clock: Any) -> None:
    clock(400)
    early = make_run(tmp_path, [3, 1])
    clock(0)
    later = make_run(tmp_path, [3, 1])
    counted = read_manifest(tmp_path).sequence
    (tmp_path / "manifest.json").unlink()
    rescan(tmp_path)
    assert newest(tmp_path) == later
    assert [entry.run for entry in read_manifest(tmp_path).entries] == [early, early, later, later]
    last = make_run(tmp_path, [5])
    assert newest(tmp_path) == last
    assert read_manifest(tmp_path).sequence >= counted


def test_of_two_runs_at_work_the_one_that_wrote_last_is_the_newest(tmp_path: Path, clock: Any) -> None:
    rule = Checkpointer(keep=(Every(1),))
    clock(400)
    ahead = RunStore.create(tmp_path, experiment="Toy", checkpointer=rule)
    clock(0)
    behind = RunStore.create(tmp_path, experiment="Toy", checkpointer=rule)
    for epoch, store in enumerate((ahead, behind, behind, ahead, behind), start=1):
        clock(400 if store is ahead else 0)
        store.save(RecordMeta(), {"params/w": epoch}, epoch=epoch, step=epoch, name=f"epoch-{epoch}", final=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert runs(tmp_path)[0].id == store.id
    sequences = [entry.sequence for entry in read_manifest(tmp_path).entries]
    assert sequences == sorted(set(sequences))
    ahead.close()
    behind.close()
    assert newest(tmp_path) == behind.id


def test_runs_of_a_version_that_did_not_count_come_before_all_that_are_counted(
    tmp_path: Path, make_run: Any, clock: Any
) -> None:
    clock(400)
    make_run(tmp_path, [1])
    file = tmp_path / "manifest.json"
    document = json.loads(file.read_text())
    for item in (document, *document["entries"], *document["runs"].values()):
        item.pop("sequence", None)
    file.write_text(json.dumps({**document, "format": 1}))
    clock(0)
    later = make_run(tmp_path, [1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        assert newest(tmp_path) == later


def test_best_goes_by_the_metric_of_the_checkpoint_that_was_written_last(
    tmp_path: Path, make_run: Any, clock: Any
) -> None:
    clock(400)
    make_run(tmp_path, [0.2], metric="loss", mode="min")
    clock(0)
    make_run(tmp_path, [0.9], metric="acc", mode="max")
    with pytest.warns(NitroWarning, match="scored otherwise"):
        assert resolve_source("all:best", tmp_path).score == 0.9
