"""The value objects of the run knobs, and a user's own objects in their place."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import (
    EMA,
    Best,
    Checkpointer,
    EarlyStopping,
    Experiment,
    JSONLogger,
    Last,
    Monitor,
    Tee,
    TensorBoardLogger,
    parse_duration,
)


class StopAtThree:
    def should_stop(self, epoch, metrics):
        return epoch >= 3


class MyLogger:
    def log_params(self, params): ...
    def log_metrics(self, metrics, *, step, epoch, context): ...
    def log_other(self, key, value): ...
    def finish(self, status): ...


class MyStore:
    def save(self, record, **kw): ...
    def load(self, source): ...
    def find_latest(self): ...
    def find_best(self): ...


@pytest.mark.parametrize(
    ("knob", "own"), [("early_stop", StopAtThree()), ("logger", MyLogger()), ("checkpointer", MyStore())]
)
def test_a_users_own_object_with_the_methods_is_taken_as_it_is(knob, own):
    assert getattr(Experiment(**{knob: own}), knob) is own


@pytest.mark.parametrize(
    ("knob", "own", "missing"),
    [
        ("early_stop", MyLogger(), "should_stop()"),
        ("logger", MyStore(), "log_params()"),
        ("checkpointer", StopAtThree(), "find_best()"),
    ],
)
def test_an_object_without_a_needed_method_is_refused_and_the_method_named(knob, own, missing):
    with pytest.raises(ConfigError) as caught:
        Experiment(**{knob: own})
    assert missing in caught.value.what
    assert type(own).__name__ in caught.value.what


@pytest.mark.parametrize("wrong", ["tensorboard", 5, ["a"], True, StopAtThree])
@pytest.mark.parametrize("knob", ["early_stop", "logger", "checkpointer"])
def test_a_scalar_a_list_or_a_class_is_no_part(knob, wrong):
    with pytest.raises(ConfigError, match=knob):
        Experiment(**{knob: wrong})


def test_defaults_of_the_value_objects():
    stop = EarlyStopping()
    assert (stop.patience, stop.min_delta, stop.metric, stop.mode) == (5, 1e-4, None, None)
    ema = EMA(0.999)
    assert (ema.beta, ema.warmup, ema.every) == (0.999, True, 1)
    keeper = Checkpointer()
    assert (keeper.keep, keeper.metric, keeper.mode, keeper.scope) == ((Best(3), Last(1)), None, None, "run")


@pytest.mark.parametrize("cls", [EarlyStopping, Checkpointer])
def test_metric_and_mode_go_together(cls):
    assert cls(metric="acc", mode="max").mode == "max"
    with pytest.raises(ConfigError, match="metric without mode"):
        cls(metric="acc")
    with pytest.raises(ConfigError, match="mode without metric"):
        cls(mode="max")


def test_keep_refuses_among_and_emptiness_and_takes_one_selector_alone():
    assert Checkpointer(keep=Last(5)).keep == (Last(5),)
    with pytest.raises(ConfigError, match="among is for loading"):
        Checkpointer(keep=(Best(1, among=Last(5)),))
    with pytest.raises(ConfigError, match="keep is empty"):
        Checkpointer(keep=())
    with pytest.raises(ConfigError, match="Average"):
        Checkpointer(keep=("average(last(3))",))


def test_value_objects_are_frozen_and_refuse_unknown_names_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        EarlyStopping(patiense=3)
    assert caught.value.nearest == ("patience",)


def test_tee_takes_loggers_by_position_or_as_a_table():
    tee = Tee(JSONLogger(), TensorBoardLogger(), MyLogger())
    assert [type(part) for part in tee.loggers] == [JSONLogger, TensorBoardLogger, MyLogger]
    e = Experiment(logger={"kind": "tee", "loggers": [{"kind": "json"}, {"kind": "tensorboard"}]})
    assert e.logger == Tee(JSONLogger(), TensorBoardLogger())


def test_a_monitor_equals_its_plain_pair_and_is_checked():
    assert Monitor("acc", "max") == ("acc", "max")
    assert Experiment(monitor=("acc", "max")).monitor.metric == "acc"
    with pytest.raises(ConfigError, match="'min' or 'max'"):
        Monitor("acc", "up")
    with pytest.raises(ConfigError, match=r"Monitor\.metric"):
        Monitor("", "min")
    with pytest.raises(ConfigError, match="is a name"):
        Experiment(monitor=("", "min"))


def test_knobs_survive_their_json_form():
    e = Experiment(
        early_stop=EarlyStopping(patience=2),
        checkpointer=Checkpointer(keep=(Best(2), Last(3))),
        logger=Tee(JSONLogger("x.jsonl"), TensorBoardLogger()),
        monitor=("acc", "max"),
        ema=EMA(0.9, every=2),
        run_dir="runs/a",
    )
    dumped = e.model_dump(mode="json", exclude_none=True)
    assert dumped["checkpointer"]["keep"] == ["best(2)", "last(3)"]
    assert dumped["monitor"] == ["acc", "max"]
    assert Experiment(**dumped) == e


@pytest.mark.parametrize(
    ("text", "seconds"), [("55m", 3300), ("1h30m", 5400), ("2d", 172800), ("90s", 90), ("90", 90), ("1.5h", 5400)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds
    assert Experiment(max_time=text).max_time == seconds


def test_a_timedelta_is_a_duration():
    assert Experiment(max_time=timedelta(minutes=2)).max_time == 120.0


@given(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_a_duration_is_the_sum_of_its_parts(days, hours, minutes, seconds):
    expected = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == expected


@pytest.mark.parametrize("text", ["", "m", "5x", "1m1h", "-5m", "five"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match="no duration"):
        parse_duration(text)
