"""The monitor: its policies, what it is in each row, its natural direction, and one of the train split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import ArrayBatches, EarlyStopping, History, Nitro
from nitro_cli.errors import ConfigError, MetricError
from nitro_cli.experiment import Experiment, Monitor
from nitro_cli.optim import Plateau
from nitro_cli.registry import read_config
from nitro_cli.tasks import Categorical
from tests.tiny import Light, points

NAN = float("nan")


def scripted(*values: float | None) -> Any:
    """An experiment whose validation reports these values of `m`, epoch by epoch; None reports none."""

    class Scripted(Light):
        monitor = ("m", "max")
        max_epochs = len(values)

        def finalize_metrics(self, acc: Any, split: str) -> Any:
            if split != "val":
                return acc
            value = SCRIPT.pop(0)
            return {**acc, **({} if value is None else {"m": value})}

    SCRIPT[:] = values
    return Scripted


SCRIPT: list[float | None] = []


def judged(nitro: Nitro) -> list[tuple[Any, str, bool]]:
    return [tuple(row["monitor"].values()) for row in nitro.history]


def test_each_row_has_the_value_its_status_and_whether_it_improved(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a bad epoch"):
        nitro = Nitro(scripted(0.5, 0.4, NAN, 0.6)(), run_dir=tmp_path).train()
    wanted = [(0.5, "ok", True), (0.4, "ok", False), (None, "nonfinite", False), (0.6, "ok", True)]
    assert judged(nitro) == wanted
    assert nitro.run_path is not None
    lines = [json.loads(line) for line in (nitro.run_path / "history.jsonl").read_text().splitlines()]
    assert [tuple(line["monitor"].values()) for line in lines] == wanted
    read = History.read_jsonl(nitro.run_path / "history.jsonl")
    assert [row["monitor"] for row in read] == [row["monitor"] for row in nitro.history]
    assert "monitor" not in str(read.to_csv())


def test_improved_goes_on_over_a_resume(tmp_path: Path) -> None:
    Nitro(scripted(0.5)(), run_dir=tmp_path).train()
    nitro = Nitro(scripted(0.4, 0.7)(), run_dir=tmp_path, max_epochs=3, resume="auto")
    assert nitro.resume_status.restored == ("monitor",)
    assert [improved for _, _, improved in judged(nitro.train())] == [True, False, True]


def test_a_missing_value_fails_the_run_or_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="'m'"):
        Nitro(scripted(0.5, None)(), run_dir=tmp_path / "a").train()
    e = scripted(0.5, None, None, 0.4, 0.3)(
        monitor=Monitor("m", "max", on_missing="skip"), early_stop=EarlyStopping(patience=2)
    )
    plateau = Plateau(1.0, factor=0.5, patience=0)
    nitro = Nitro(e, run_dir=tmp_path / "b", schedules={"learning_rate": plateau}, max_epochs=9)
    nitro.train()
    assert [status for _, status, _ in judged(nitro)] == ["ok", "missing", "missing", "ok", "ok"]
    assert nitro.stop_reason == "early_stop"  # after the two that counted
    assert nitro.run_state.rules.plateau_scales() == {"schedule/plateau/learning_rate": 0.25}
    assert nitro.best is not None
    assert nitro.best["score"] == 0.5


def test_a_value_that_is_not_finite_may_fail_the_run(tmp_path: Path) -> None:
    e = scripted(0.5, NAN)(monitor=Monitor("m", "max", on_nonfinite="error"))
    with pytest.raises(MetricError, match="the monitor m is nan at epoch 2"):
        Nitro(e, run_dir=tmp_path).train()


class Trained(Light):
    """No validation; judged by the train split."""

    monitor = Monitor("train_loss")
    early_stop = EarlyStopping(patience=1, min_delta=1e9)

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(16, 1), 8)}

    def train_metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"right": (outputs.argmax(-1) == y).mean()}


@pytest.mark.filterwarnings("error::nitro_cli.errors.NitroWarning")
@pytest.mark.parametrize("metric", ["train_loss", "train/right"])
def test_a_monitor_of_the_train_split_needs_no_validation(tmp_path: Path, metric: str) -> None:
    monitor = Monitor(metric, None if metric == "train_loss" else "max")
    nitro = Nitro(Trained(monitor=monitor), run_dir=tmp_path, max_epochs=9).train()
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", 2)
    assert [row["monitor"]["value"] for row in nitro.history] == [row[metric] for row in nitro.history]
    assert nitro.best is not None
    assert nitro.best["score"] == (min if metric == "train_loss" else max)(row[metric] for row in nitro.history)


def test_an_unknown_name_of_the_train_split_is_refused_at_setup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'train/wrong', which training does not report") as refused:
        Nitro(Trained(monitor=("train/wrong", "max")), run_dir=tmp_path)
    assert "train/right" in str(refused.value)


class Tasked(Light):
    loss = None
    metrics = None
    task: Categorical = Categorical(3, target="y", metrics=("accuracy", "nll"))
    monitor = None


@pytest.mark.parametrize(("metric", "mode"), [("accuracy", "max"), ("nll", "min"), ("loss", "min")])
def test_the_mode_is_by_default_the_metrics_own(tmp_path: Path, metric: str, mode: str) -> None:
    nitro = Nitro(Tasked(monitor={"metric": metric}, eval_loss=True), run_dir=tmp_path)
    assert nitro.monitor == (metric, mode)


def test_without_a_direction_the_mode_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing says which way 'acc' is better"):
        Nitro(Light(monitor={"metric": "acc"}), run_dir=tmp_path)


def test_a_pair_is_a_pair_and_a_table_is_kept_in_the_record(tmp_path: Path) -> None:
    assert Light(monitor=Monitor("acc", "max")).monitor == Light().monitor == ("acc", "max")
    e = Light(monitor={"metric": "acc", "mode": "max", "on_missing": "skip"})
    nitro = Nitro(e, run_dir=tmp_path, max_epochs=1).train()
    assert nitro.run_path is not None
    assert read_config(nitro.run_path / "config.toml", cls=Light).experiment.monitor == e.monitor
    for wrong in ({"metric": "acc", "mod": "max"}, {"metric": ""}, ["acc"], {"metric": "a", "on_missing": "no"}):
        with pytest.raises(ConfigError, match="monitor"):
            Experiment(monitor=wrong)


def test_a_history_without_a_state_of_the_monitor_is_caught_up_with() -> None:
    from nitro_cli.experiment import Criterion
    from nitro_cli.run.monitor_watch import MonitorWatch

    watch = MonitorWatch(Criterion("m", "min"), Monitor("m", "min"))
    watch.catch_up([{"m": 0.5}, {"m": NAN}, {}, {"m": 0.7}])
    assert watch.state() == {"metric": "m", "mode": "min", "best": 0.5}
    assert watch.read(4, {"m": np.float32(0.6)}, validated=True) == {
        "value": pytest.approx(0.6),
        "status": "ok",
        "improved": False,
    }


def test_a_monitor_is_checked_at_setup_where_the_loss_is_reported_too(tmp_path: Path) -> None:
    class Judged(Light):
        loss = None
        metrics = None
        task = Categorical(target="y")

    with pytest.raises(ConfigError, match="goes by 'eval_loss'") as error:
        Nitro(Judged(eval_loss=True, monitor=("eval_loss", "min")), run_dir=tmp_path)
    assert "loss" in error.value.nearest
    with pytest.raises(ConfigError, match="goes by 'loss'") as unset:
        Nitro(Judged(monitor=("loss", "min")), run_dir=tmp_path)
    assert unset.value.fix == "set eval_loss = true, and name loss"
    Nitro(Judged(eval_loss=True, monitor=("loss/cross_entropy", "min")), run_dir=tmp_path)
