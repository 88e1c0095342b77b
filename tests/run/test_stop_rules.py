"""Early stopping, a user's own rule, time and requests; restored best weights; averaged weights in evaluation."""

from __future__ import annotations

import itertools
import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nitro_cli import EMA, Checkpointer, EarlyStopping, Nitro, checkpoint_info, read_manifest
from nitro_cli.errors import ConfigError, IncompatibleError, MetricError
from nitro_cli.experiment import parse_selector
from nitro_cli.run.stopping import EarlyStop
from tests.tiny import Light, stop_after


class Scripted(Light):
    """Reports a written series as its validation metric."""

    max_epochs = 8
    series: tuple[Any, ...] = ()
    monitor = ("score", "max")
    checkpointer = Checkpointer(keep=("last(1)",))

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        if split != "val":
            return dict(acc)
        type(self).calls += 1
        return {"score": self.series[type(self).calls - 1], "acc": acc["acc"]}


Scripted.calls = 0


def run(folder: Path, series: Any, start: int = 0, resume: Any = None, **fields: Any) -> Nitro:
    Scripted.calls = start
    fields = {"early_stop": EarlyStopping(patience=2, min_delta=0.125)} | fields
    return Nitro(Scripted(series=tuple(series), **fields), run_dir=folder, resume=resume).train()


SERIES = {
    # name: (values, mode, last epoch); patience 2, min_delta 0.125, counted by hand
    "a gain of exactly min_delta is none": ([1.0, 1.125, 1.125], "max", 3),
    "a gain beyond min_delta resets": ([1.0, 1.25, 1.25, 1.5, 1.5, 1.5], "max", 6),
    "small gains add up against the best": ([1.0, 1.0625, 1.1875, 1.25, 1.25], "max", 5),
    "lower is better": ([1.0, 0.5, 0.45, 0.6], "min", 4),
    "epochs that are not finite are bad": ([1.0, float("nan"), float("nan")], "max", 3),
    "an infinite epoch is bad too": ([1.0, float("inf"), 2.0, 2.0, 2.0], "max", 5),
    "nothing finite at first": ([float("nan"), 1.0, 1.0, 1.0], "max", 4),
}


@pytest.mark.parametrize("name", SERIES)
def test_patience_counts_epochs_without_a_gain_beyond_min_delta(name: str) -> None:
    values, mode, last = SERIES[name]
    rule = EarlyStop(EarlyStopping(patience=2, min_delta=0.125), "score", mode)
    epochs = enumerate([*values, *[values[-1]] * 8], 1)
    assert next(epoch for epoch, value in epochs if rule.should_stop(epoch, {"score": value})) == last


@pytest.mark.parametrize("name", ["lower is better", "an infinite epoch is bad too"])
def test_a_run_ends_where_patience_does_and_tells_of_bad_epochs(name: str, tmp_path: Path) -> None:
    values, mode, last = SERIES[name]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nitro = run(tmp_path, [*values, *[values[-1]] * 8][:8], monitor=("score", mode), logger=None)
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", last)
    assert read_manifest(tmp_path).runs[nitro.run_id].status == "early_stop"
    bad = sum(1 for value in values[:last] if not np.isfinite(value))
    assert len([w for w in told if "a bad epoch" in str(w.message)]) == bad


def test_counters_continue_on_resume_under_another_patience(tmp_path: Path) -> None:
    series = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    first = run(tmp_path, series)
    assert (first.stop_reason, first.epoch) == ("early_stop", 3)
    again = run(tmp_path, series, start=3, resume="auto", early_stop=EarlyStopping(patience=4, min_delta=0.1))
    assert (again.stop_reason, again.epoch, again.run_id) == ("early_stop", 5, first.run_id)


def test_counters_start_fresh_under_another_metric(tmp_path: Path) -> None:
    first = run(tmp_path, [1.0] * 8)
    rule = EarlyStopping(patience=2, min_delta=0.1, metric="acc", mode="max")
    with pytest.warns(UserWarning, match=r"watched score \(max\).*watches acc \(max\).*start fresh"):
        again = run(tmp_path, [1.0] * 8, start=3, resume="auto", early_stop=rule, max_epochs=4)
    assert (again.stop_reason, again.epoch, first.epoch) == ("completed", 4, 3)


class Twice:
    """Stops when asked for the second time."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def should_stop(self, epoch: int, metrics: Any) -> bool:
        self.asked.append((epoch, metrics["score"]))
        return len(self.asked) == 2


class Remembering(Twice):
    def state(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state(self, state: dict[str, Any]) -> None:
        self.asked = [tuple(item) for item in state["asked"]]


def test_a_users_rule_is_asked_after_each_validation(tmp_path: Path) -> None:
    rule = Twice()
    nitro = run(tmp_path, [0.5, 0.25, 0.1, 0, 0, 0, 0, 0], early_stop=rule)
    assert rule.asked == [(1, 0.5), (2, 0.25)]
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", 2)


@pytest.mark.parametrize(("kind", "last"), [(Remembering, 2), (Twice, 3)])
def test_a_users_rule_continues_with_its_state_and_is_told_to_start_fresh_without(
    kind: type[Twice], last: int, tmp_path: Path
) -> None:
    series = [0.5, 0.25, 0.1, 0, 0, 0, 0, 0]
    run(tmp_path, series, early_stop=kind(), max_epochs=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed = run(tmp_path, series, start=1, early_stop=kind(), resume="auto")
    assert resumed.epoch == last
    assert any("counters start fresh" in str(w.message) for w in told) == (kind is Twice)


def test_a_metric_that_is_not_finite_is_null_in_json_and_ranks_last(tmp_path: Path) -> None:
    nan = float("nan")
    keep = Checkpointer(keep=("best(1)", "last(1)"))
    with pytest.warns(UserWarning, match="score is nan at epoch"):
        nitro = run(tmp_path, [nan, 0.5, nan], max_epochs=3, early_stop=None, checkpointer=keep)
    rows = [json.loads(line) for line in (nitro.run_path / "history.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [None, 0.5, None]
    assert rows[0]["nonfinite"] == {"score": "nan"}
    logged = [json.loads(line) for line in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
    validate = [line for line in logged if line.get("context") == "validate"]
    assert ["score" in line for line in validate] == [False, True, False]
    assert nitro.best["epoch"] == 2
    assert sorted(entry.epoch for entry in read_manifest(tmp_path).entries) == [2, 3]


@pytest.mark.parametrize("value", ["high", None, 1 + 2j, [1.0, 2.0]])
def test_a_monitored_metric_that_is_no_real_number_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="score"):
        run(tmp_path, [value] * 8)


def test_restore_best_ends_on_the_best_weights_and_closes_the_handle(tmp_path: Path, bits: Any) -> None:
    Scripted.calls = 0
    keep = Checkpointer(keep=("best(1)", "last(1)"))
    e = Scripted(series=(0.1, 0.9, 0.2), max_epochs=3, checkpointer=keep)
    nitro = Nitro(e, run_dir=tmp_path, restore_best=True).train()
    assert nitro.best["epoch"] == 2
    best = Nitro(e, run_dir=tmp_path, weights=(nitro.run_id, "best"))
    assert bits(nitro.params) == bits(best.params)
    assert bits(nitro.state) == bits(best.state)
    assert bits(best.params) != bits(Nitro(e, run_dir=tmp_path, weights=(nitro.run_id, "latest")).params)
    assert "epoch-0002" in nitro.checkpoint_source
    with pytest.raises(IncompatibleError, match="restored weights"):
        nitro.train()


def test_restore_best_with_an_average_ends_on_the_mean(tmp_path: Path) -> None:
    Scripted.calls = 0
    e = Scripted(series=(0.1, 0.9, 0.2), max_epochs=3, checkpointer=Checkpointer(keep=("last(3)",)))
    nitro = Nitro(e, run_dir=tmp_path, restore_best=parse_selector("average(last(2))")).train()
    each = []
    for entry in read_manifest(tmp_path).entries:
        if entry.epoch > 1:
            path = str(tmp_path / entry.path)
            each.append(np.asarray(Nitro(e, run_dir=tmp_path, weights=path).params["kernel"], np.float64))
    assert len(each) == 2
    np.testing.assert_allclose(nitro.params["kernel"], np.mean(each, axis=0), rtol=1e-6)


def test_evaluation_reads_the_average_unless_told_raw(tmp_path: Path) -> None:
    class Averaged(Light):
        ema = EMA(0.99, warmup=False)
        logger = None
        checkpointer = None
        learning_rate = 1.0

        def metrics(self, outputs: Any, *, y: Any) -> Any:
            from nitro_cli import Mean

            return {"acc": Mean(float(np.abs(outputs).sum()), len(y))}

    nitro = Nitro(Averaged(), run_dir=tmp_path).train()
    raw = Nitro(Averaged(eval_weights="raw"), run_dir=tmp_path).train()
    assert np.array_equal(nitro.params["kernel"], raw.params["kernel"])
    fresh = Nitro(Averaged(eval_weights="raw", ema=None), run_dir=tmp_path)
    fresh.train_state = fresh.train_state._replace(params=nitro.ema, state=nitro.state)
    assert nitro.evaluate("test") == fresh.evaluate("test")
    assert nitro.evaluate("test") != raw.evaluate("test")
    with pytest.raises(ConfigError, match="keeps no EMA"):
        Nitro(Averaged(eval_weights="ema", ema=None), run_dir=tmp_path).validate()


def test_max_time_stops_at_a_step_boundary_with_the_state_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 1)
    monkeypatch.setattr("nitro_cli.run.stopping.time.monotonic", lambda: float(next(clock)))
    nitro = Nitro(Light(max_time=5, max_epochs=9), run_dir=tmp_path).train()
    assert (nitro.stop_reason, nitro.stop_cause, nitro.state_saved) == ("requested", "max_time", True)
    assert 1 <= nitro.step < 18
    assert [entry.step for entry in read_manifest(tmp_path).entries] == [nitro.step]


def test_a_request_writes_a_resume_point_without_validation_or_history(tmp_path: Path, log_lines: Any) -> None:
    nitro = Nitro(Light(samples=96), run_dir=tmp_path)
    stop_after(nitro, 5)
    nitro.train()
    assert (nitro.stop_reason, nitro.stop_cause, nitro.step) == ("requested", "request", 5)
    assert len(nitro.history) == 0
    assert log_lines(nitro, "validate") == []
    (entry,) = read_manifest(tmp_path).entries
    assert (entry.step, entry.score, entry.resume_point) == (5, None, True)
    meta = checkpoint_info(tmp_path / entry.path).meta
    assert (meta.position, meta.epoch_closed) == (5, False)
    finish = json.loads((nitro.run_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (finish["type"], finish["status"]) == ("finish", "requested")


def test_checkpoints_inside_an_epoch_are_resume_points_and_validated_ones_replace_them(tmp_path: Path) -> None:
    nitro = Nitro(Light(samples=96, checkpoint_every_n_steps=5, max_epochs=1), run_dir=tmp_path)
    seen: list[Any] = []
    nitro.register_phase_monitor(lambda phase, step, *_: seen.append((phase.name.value, step)))
    nitro.train()
    assert [step for name, step in seen if name == "Checkpointing"] == [5, 10, 12]
    assert [entry.step for entry in read_manifest(tmp_path).entries if not entry.resume_point] == [12]


@pytest.mark.parametrize(("minutes", "expected"), [(0.0999, [6, 12, 18, 24]), (9.0, [12, 24])])
def test_a_checkpoint_is_due_again_so_many_minutes_after_the_last(
    minutes: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nitro = Nitro(Light(samples=96, checkpoint_every_minutes=minutes, max_epochs=2), run_dir=tmp_path)
    # A step takes a second: six of them are more than 0.0999 minutes.
    clock = SimpleNamespace(monotonic=lambda: float(nitro.step), perf_counter=time.perf_counter)
    monkeypatch.setattr("nitro_cli.run.loop.time", clock)
    monkeypatch.setattr("nitro_cli.run.dispatch.SECONDS", 0.0)
    saved: list[int] = []
    nitro.register_phase_monitor(lambda phase, step, *_: saved.append(step) if phase.name == "Checkpointing" else None)
    nitro.train()
    assert saved == expected
    assert [entry.step for entry in read_manifest(tmp_path).entries if entry.resume_point] == []
