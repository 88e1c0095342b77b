"""What the released version 0.1.0 (record format 1, manifest format 1) wrote must load for ever."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from nitro_cli.checkpoints import (
    AverageRef,
    CheckpointRef,
    RecordMeta,
    RunStore,
    average,
    load_with_fallback,
    read_record,
    record_info,
    rescan,
    resolve_source,
    runs,
    verify,
)
from nitro_cli.experiment import Checkpointer

RUN = next(p.name for p in (Path(__file__).parent / "v0.1.0").iterdir() if p.is_dir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).parent / "v0.1.0", tmp_path / "runs")


def test_the_record_says_who_wrote_it(root: Path) -> None:
    info = record_info(root / RUN / "checkpoints" / "epoch-0001-step-10-loss=1.0")
    assert (info.framework, info.format) == ("0.1.0", 1)


def test_every_leaf_loads_with_its_values_and_dtype(root: Path) -> None:
    record = read_record(root / RUN / "checkpoints" / "epoch-0002-step-20-loss=0.5")
    expected = {
        "params/dense/kernel": np.array([[0, 2, 4], [6, 8, 10]], np.float32),
        "params/dense/bias": np.array([1, 1, 1], ml_dtypes.bfloat16),
        "state/count": np.array(2, np.int32),
        "opt/default/0/count": np.array(20, np.int32),
        "opt/default/0/mu/dense/kernel": np.full((2, 3), 0.5, np.float32),
        "opt/default/empty": np.zeros((0, 4), np.float32),
        "ema/dense/kernel": np.full((2, 3), 2, np.float32),
        "extra/rng": np.array([0, 42], np.uint32),
        "extra/mask": np.array([True, False]),
    }
    assert record.arrays.pop("opt/default/flag") is True
    assert record.arrays.keys() == expected.keys()
    for path, leaf in expected.items():
        assert (record.arrays[path].dtype, record.arrays[path].shape) == (leaf.dtype, leaf.shape), path
        assert np.array_equal(record.arrays[path], leaf), path
    assert (record.meta.epoch, record.meta.seed, record.meta.stop_reason) == (2, 42, "completed")
    assert math.isnan(record.meta.metrics["nan"])


def test_the_directory_lists_verifies_resolves_averages_and_rescans(root: Path) -> None:
    (summary,) = runs(root)
    assert (summary.id, summary.status, summary.epochs, summary.seed) == (RUN, "completed", (1, 2), 42)
    assert summary.best is not None
    assert summary.best.score == 0.5
    assert all(outcome.ok for outcome in verify(root))
    ref = resolve_source("latest:best", root)
    assert isinstance(ref, CheckpointRef)
    assert load_with_fallback(ref)[2] == 0
    refs = resolve_source("latest:average(last(2))", root)
    assert isinstance(refs, AverageRef)
    assert average(refs).arrays["params/dense/kernel"][1, 2] == 7.5
    (root / "manifest.json").unlink()
    assert [e.epoch for e in rescan(root).entries] == [1, 2]


def test_the_run_can_be_continued(root: Path) -> None:
    with RunStore.reopen(root, RUN, checkpointer=Checkpointer(), metric="loss", mode="min") as run:
        run.save(RecordMeta(), {"params/w": 1}, epoch=3, step=30, score=0.25, name="epoch-0003")
    assert runs(root)[0].epochs == (1, 2, 3)
