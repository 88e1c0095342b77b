"""A resumed run equals the one that was never interrupted, bit for bit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nitro_cli import (
    EMA,
    ArrayBatches,
    Checkpointer,
    EarlyStopping,
    Mean,
    Nitro,
    Prefetch,
    checkpoint_info,
    read_manifest,
)
from nitro_cli.errors import IncompatibleError
from nitro_cli.optim import Plateau, one_cycle
from tests.tiny import Quick, points, stop_after

STEPS, EPOCHS = 6, 3
"""Optimizer steps of an epoch, 12 batches in pairs, and epochs."""


class Everything(Quick):
    """Dropout, layer state, momentum, an average, accumulation, one cycle, a plateau that reduces, early stopping."""

    accum = 2
    max_epochs = EPOCHS
    learning_rate = 0.05
    weight_decay = 0.1
    ema = EMA(0.8)
    early_stop = EarlyStopping(patience=9, min_delta=0.5)
    checkpointer = Checkpointer(keep=("last(3)",))

    def schedules(self) -> dict[str, Any]:
        return {
            "learning_rate": one_cycle(self.learning_rate),
            "weight_decay": Plateau(0.1, factor=0.5, patience=0, threshold=0.9),
        }

    def metrics(self, outputs: Any, *, y: Any) -> dict[str, Any]:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


def fed(workers: int | None) -> dict[str, Any]:
    """Training data shuffled: resident, or streamed by so many producers."""
    source = ArrayBatches(points(96, 1), 8, shuffle=True)
    val = ArrayBatches(points(51, 2), 8)
    return {"train": source if workers is None else Prefetch(source, workers=workers), "val": val}


@dataclass
class Whole:
    """An uninterrupted run."""

    nitro: Nitro
    lines: list[Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, log_lines: Any) -> Callable[[int | None], Whole]:
    made: dict[bool, Whole] = {}

    def get(workers: int | None) -> Whole:
        resident = workers is None
        if resident not in made:
            nitro = Nitro(Everything(), data=fed(workers), run_dir=tmp_path_factory.mktemp("whole")).train()
            made[resident] = Whole(nitro, log_lines(nitro, "train", "validate"))
        return made[resident]

    return get


def last_meta(nitro: Nitro) -> dict[str, Any]:
    entries = sorted(read_manifest(nitro.run_dir).entries, key=lambda entry: entry.step)
    return checkpoint_info(nitro.run_dir / entries[-1].path).meta.as_json()


def assert_equal_runs(whole: Whole, resumed: Nitro, bits: Any, log_lines: Any) -> None:
    assert bits(resumed.train_state) == bits(whole.nitro.train_state)
    assert resumed.history.json_rows() == whole.nitro.history.json_rows()
    assert log_lines(resumed, "train", "validate") == whole.lines
    for fact in ("rules", "metrics", "history", "epoch_loss", "step", "epoch", "position", "stop_reason"):
        assert last_meta(resumed)[fact] == last_meta(whole.nitro)[fact]
    rows = [json.loads(text) for text in (resumed.run_path / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]


def stopped(folder: Path, workers: int | None, step: int) -> Nitro:
    nitro = Nitro(Everything(), data=fed(workers), run_dir=folder)
    stop_after(nitro, step)
    nitro.train()
    assert (nitro.stop_reason, nitro.step, nitro.state_saved) == ("requested", step, True)
    return nitro


@pytest.mark.parametrize(
    ("workers", "then", "step"),
    [
        pytest.param(1, 1, STEPS + 2, id="streamed, inside an epoch"),
        pytest.param(1, 4, STEPS + 2, id="streamed, other producers after the resume"),
        pytest.param(1, 1, 2 * STEPS, id="streamed, at the end of an epoch"),
        pytest.param(None, None, 1, id="resident, after the first step"),
        pytest.param(None, None, 2 * STEPS, id="resident, at the end of an epoch"),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(
    workers: int | None, then: int | None, step: int, whole: Any, tmp_path: Path, bits: Any, log_lines: Any
) -> None:
    first = stopped(tmp_path, workers, step)
    assert [row["epoch"] for row in first.history.json_rows()] == list(range(1, (step - 1) // STEPS + 1))
    assert not log_lines(first, "validate") or log_lines(first, "validate")[-1]["epoch"] == (step - 1) // STEPS
    resumed = Nitro(Everything(), data=fed(then), run_dir=tmp_path, resume="auto")
    assert (resumed.step, resumed.run_id) == (step, None)
    resumed.train()
    assert resumed.run_id == first.run_id
    assert resumed.stop_reason == "completed"
    assert_equal_runs(whole(workers), resumed, bits, log_lines)


def test_the_same_handle_trains_on_after_a_stop(whole: Any, tmp_path: Path, bits: Any, log_lines: Any) -> None:
    nitro = stopped(tmp_path, None, STEPS + 1)
    nitro.stop.last_step = None
    nitro.train()
    assert_equal_runs(whole(None), nitro, bits, log_lines)


def test_a_crashed_run_continues_from_its_newest_record_and_cuts_its_log_back(
    whole: Any, tmp_path: Path, bits: Any, log_lines: Any
) -> None:
    class Crashing(Everything):
        checkpoint_every_n_steps = 2

        def metrics(self, outputs: Any, *, y: Any) -> dict[str, Any]:
            if Crashing.crashes:
                raise OSError("the cluster is gone")
            return super().metrics(outputs, y=y)

    Crashing.crashes = True
    with pytest.raises(OSError, match="the cluster is gone"):
        Nitro(Crashing(), data=fed(1), run_dir=tmp_path).train()
    newest = max(entry.step for entry in read_manifest(tmp_path).entries)
    assert newest == 4  # step 6 ends the epoch: it waits for the validation
    Crashing.crashes = False
    resumed = Nitro(Crashing(), data=fed(1), run_dir=tmp_path, resume="auto")
    assert resumed.step == 4
    resumed.train()
    assert_equal_runs(whole(1), resumed, bits, log_lines)
    cut = (resumed.run_path / "metrics.jsonl.discarded").read_text()
    assert [json.loads(line)["step"] for line in cut.splitlines() if '"train"' in line] == [5, 6]


def test_a_longer_horizon_under_schedules_that_know_none_is_the_longer_run(tmp_path: Path, bits: Any) -> None:
    class Free(Everything):
        early_stop = None

        def schedules(self) -> dict[str, Any]:
            return {"learning_rate": lambda step: 0.05 * 0.98**step}

    whole = Nitro(Free(max_epochs=2), data=fed(None), run_dir=tmp_path / "whole").train()
    Nitro(Free(max_epochs=1), data=fed(None), run_dir=tmp_path / "parts").train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = Nitro(Free(max_epochs=2), data=fed(None), run_dir=tmp_path / "parts", resume="auto")
    longer.train()
    assert bits(longer.train_state) == bits(whole.train_state)
    assert longer.history.json_rows() == whole.history.json_rows()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """A finished run with the records of its three epochs; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        return Nitro(Everything(), data=fed(None), run_dir=tmp_path_factory.mktemp("finished")).train()


def again(finished: Nitro, resume: Any, **fields: Any) -> Nitro:
    return Nitro(Everything(**fields), data=fed(None), run_dir=finished.run_dir, resume=resume)


def test_a_longer_horizon_under_one_cycle_is_told_with_the_jump(finished: Nitro) -> None:
    with pytest.warns(UserWarning, match=r"another horizon.*learning_rate"):
        again(finished, "auto", max_epochs=5)


def test_a_finished_run_resumes_to_nothing_and_says_what_to_change(finished: Nitro, bits: Any) -> None:
    before = (finished.run_path / "metrics.jsonl").read_bytes()
    handle = again(finished, "auto")
    with pytest.warns(UserWarning, match="max_epochs"):
        handle.train()
    assert handle.stop_reason == "completed"
    assert bits(handle.params) == bits(finished.params)
    kept = (finished.run_path / "metrics.jsonl").read_bytes()
    assert kept[: len(before)] == before


def test_resuming_an_older_record_branches_a_new_run_off_it(finished: Nitro, bits: Any, log_lines: Any) -> None:
    log = finished.run_path / "metrics.jsonl"
    before = log.read_bytes()
    entry = next(entry for entry in read_manifest(finished.run_dir).entries if entry.epoch == 2)
    branch = again(finished, str(finished.run_dir / entry.path)).train()
    assert branch.run_id != finished.run_id
    assert log.read_bytes() == before
    assert bits(branch.train_state) == bits(finished.train_state)
    assert branch.history.json_rows() == finished.history.json_rows()
    assert [line["epoch"] for line in log_lines(branch, "validate")] == [3]
    parent = read_manifest(finished.run_dir).runs[branch.run_id].parent
    assert finished.run_id in parent
    assert entry.path.split("/")[-1] in parent


def test_a_resume_keeps_the_seed_of_the_record_and_says_so(finished: Nitro) -> None:
    with pytest.warns(UserWarning, match="the seed is the checkpoint's, 42, not 1"):
        handle = again(finished, (finished.run_id, "latest"), seed=1)
    assert handle.plan.settings.seed == 42


def test_another_graphconst_value_is_refused_with_both(finished: Nitro) -> None:
    with pytest.raises(IncompatibleError, match="width: 9 here, 8 in the checkpoint"):
        again(finished, (finished.run_id, "latest"), width=9)


def test_another_accum_is_refused_inside_an_epoch_and_told_between_epochs(finished: Nitro, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="accum 2 and 12 batches in the checkpoint, 3 and 12 here"):
        again(finished, (finished.run_id, "latest"), accum=3)
    stopped(tmp_path, None, 2)
    with pytest.raises(IncompatibleError, match="inside an epoch"):
        Nitro(Everything(accum=3), data=fed(None), run_dir=tmp_path, resume="auto")


def test_a_run_that_changed_its_accum_keeps_its_horizon_over_a_further_stop(
    finished: Nitro, tmp_path: Path, bits: Any, log_lines: Any
) -> None:
    (entry,) = [
        entry for entry in read_manifest(finished.run_dir).entries if (entry.epoch, entry.run) == (1, finished.run_id)
    ]

    def changed(name: str, resume: Any) -> Nitro:
        return Nitro(Everything(accum=3), data=fed(None), run_dir=tmp_path / name, resume=resume)

    with pytest.warns(UserWarning, match="another way"):
        through = changed("through", finished.run_dir / entry.path)
    through.train()
    with pytest.warns(UserWarning, match="another way"):
        first = changed("stopped", finished.run_dir / entry.path)
    stop_after(first, STEPS + 2)
    first.train()
    resumed = changed("stopped", "auto")
    # Six steps in pairs, then four an epoch in threes.
    assert (through.plan.optim.total_steps, resumed.step, resumed.plan.optim.total_steps) == (14, 8, 14)
    resumed.train()
    assert bits(resumed.train_state) == bits(through.train_state)
    assert log_lines(resumed, "train") == log_lines(through, "train")


def test_auto_starts_fresh_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="starting fresh"):
        handle = Nitro(Everything(), data=fed(None), run_dir=tmp_path, resume="auto")
    assert (handle.step, handle.epoch, handle.checkpoint_source) == (0, 0, None)
