"""A user's own logger, several at once, and continuing a logged run."""

import json
import math
import re
import sys

import numpy as np
import pytest

from nitro_cli.errors import ConfigError, IncompatibleError, MissingExtraError, StorageError
from nitro_cli.experiment import JSONLogger, MLflowLogger, Tee, TensorBoardLogger, TrackioLogger, WandbLogger
from nitro_cli.tracking import (
    JsonLogger,
    LiveLogger,
    UserLogger,
    check_logger,
    files_outside,
    logger_identity,
    open_logger,
    reattach_logger,
)


class Recorder:
    """A user's logger with the verbs a run needs and no more."""

    def __init__(self):
        self.calls = []

    def log_params(self, params):
        self.calls.append(("params", params))

    def log_metrics(self, metrics, *, step, epoch, context):
        self.calls.append(("metrics", metrics, step, epoch, context))

    def log_other(self, key, value):
        self.calls.append(("other", key, value))

    def finish(self, status):
        self.calls.append(("finish", status))


class Resumable(Recorder):
    run_id = "r1"

    def run_url(self):
        return "http://tracker/r1"

    def state(self):
        return {"id": "r1"}

    def reattach(self, state):
        self.calls.append(("reattach", state))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "MnistMLP" / "a1b2c3d4" / "metrics.jsonl"


def test_a_users_object_gets_the_verbs(path):
    mine = Recorder()
    live = open_logger(mine, path)
    live.log_params({"seed": 1})
    live.log_metrics({"loss": 0.5}, step=1, epoch=1, context="train")
    live.log_other("k", "v")
    live.finish("completed")
    assert mine.calls == [
        ("params", {"seed": 1}),
        ("metrics", {"loss": 0.5}, 1, 1, "train"),
        ("other", "k", "v"),
        ("finish", "completed"),
    ]
    assert live.backend is mine
    assert isinstance(live, LiveLogger)


def test_a_users_object_never_sees_a_non_finite_scalar(path):
    mine = Recorder()
    array = np.asarray([math.nan])
    open_logger(mine, path).log_metrics(
        {"a": math.nan, "b": np.float32("inf"), "c": None, "v": array, "n": np.float32(0.5)},
        step=1,
        epoch=1,
        context="train",
    )
    metrics = mine.calls[0][1]
    assert set(metrics) == {"v", "n"}
    assert metrics["v"] is array
    assert type(metrics["n"]) is float


def test_a_logger_that_lacks_what_a_run_calls_is_refused_at_setup_naming_the_verbs(path):
    class Half:
        def log_metrics(self, metrics, *, step, epoch, context): ...

    with pytest.raises(ConfigError) as err:
        open_logger(Half(), path)
    text = str(err.value)
    assert "`log_params`, `log_other`, `finish`" in text
    assert "Half" in text
    assert "`log_metrics`" not in text


def test_a_logger_with_a_state_and_no_way_back_is_refused():
    class OneWay(Recorder):
        def state(self):
            return 1

    with pytest.raises(ConfigError, match="`reattach`"):
        check_logger(OneWay())


def test_a_missing_verb_is_an_error_when_it_is_called(path):
    live = open_logger(Recorder(), path)
    with pytest.raises(ConfigError, match="no `log_confusion`"):
        live.log_confusion([[1]], ["a"], epoch=1)
    with pytest.raises(ConfigError, match="no `log_tags`"):
        live.log_tags(["x"])


def test_a_verb_that_a_wrapper_lost_is_an_error_at_its_first_call():
    live = UserLogger(object())
    with pytest.raises(ConfigError, match="no `log_metrics`"):
        live.log_metrics({}, step=1, epoch=1, context="train")


def test_run_id_and_address_may_be_attributes_or_methods(path):
    live = open_logger(Resumable(), path)
    assert live.run_id == "r1"
    assert live.run_url == "http://tracker/r1"
    assert open_logger(Recorder(), path).run_id is None


def test_no_logger_is_none(path):
    assert open_logger(None, path) is None


def test_a_path_of_its_own_replaces_the_default(path, tmp_path):
    assert open_logger(JSONLogger(), path).path == path
    assert open_logger(JSONLogger(tmp_path / "x.jsonl"), path).path == tmp_path / "x.jsonl"


class TestTee:
    def test_every_logger_gets_every_verb(self, path):
        mine = Resumable()
        live = open_logger(Tee(JSONLogger(), mine), path)
        live.log_params({"seed": 1})
        live.log_metrics({"loss": 0.5}, step=1, epoch=1, context="train")
        live.finish("completed")
        assert [call[0] for call in mine.calls] == ["params", "metrics", "finish"]
        assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == ["params", "metrics", "finish"]
        assert live.run_id == "r1"
        assert live.run_url == "http://tracker/r1"
        assert live.backend == (live.loggers[0].backend, mine)

    def test_the_files_that_are_not_the_runs_own_are_known(self, path, tmp_path):
        live = open_logger(Tee(Recorder(), JSONLogger(), JSONLogger(tmp_path / "x.jsonl")), path)
        assert files_outside(live) == [tmp_path / "x.jsonl"]
        assert files_outside(None) == files_outside(open_logger(JSONLogger(), path)) == []

    def test_each_gets_its_own_state_back(self, path):
        mine = Resumable()
        state = open_logger(Tee(JSONLogger(), Resumable()), path).state()
        live = open_logger(Tee(JSONLogger(), mine), path)
        reattach_logger(live, live.identity, state)
        assert mine.calls == [("reattach", {"id": "r1"})]

    def test_one_that_fails_to_finish_does_not_keep_the_others_open(self, path):
        class Failing(Recorder):
            def finish(self, status):
                raise StorageError("gone")

        mine = Recorder()
        live = open_logger(Tee(Failing(), mine, JSONLogger()), path)
        with pytest.raises(StorageError, match="gone"):
            live.finish("error")
        assert mine.calls == [("finish", "error")]
        assert [json.loads(line) for line in path.read_text().splitlines()] == [{"type": "finish", "status": "error"}]


class TestReattach:
    def test_the_same_type_continues(self, path):
        mine = Resumable()
        live = open_logger(mine, path)
        reattach_logger(live, live.identity, live.state())
        assert mine.calls == [("reattach", {"id": "r1"})]

    def test_another_type_is_refused_naming_both(self, path):
        live = open_logger(JSONLogger(), path)
        with pytest.raises(IncompatibleError) as err:
            reattach_logger(live, "mlflow", {"run_id": "x"})
        assert "mlflow" in str(err.value)
        assert "json" in str(err.value)

    def test_two_user_types_are_told_apart_by_their_classes(self, path):
        with pytest.raises(IncompatibleError, match="Recorder"):
            reattach_logger(open_logger(Resumable(), path), open_logger(Recorder(), path).identity, None)

    def test_logging_that_was_off_or_goes_off_is_no_conflict(self, path):
        reattach_logger(None, "json", None)
        reattach_logger(open_logger(JSONLogger(), path), None, None)

    def test_no_state_is_no_reattachment(self, path):
        mine = Recorder()
        live = open_logger(mine, path)
        assert live.state() is None
        reattach_logger(live, live.identity, live.state())
        assert mine.calls == []


@pytest.mark.parametrize(
    ("spec", "identity"),
    [
        (None, None),
        (JSONLogger(), "json"),
        (JsonLogger("x"), "json"),
        (TensorBoardLogger(), "tensorboard"),
        (MLflowLogger(), "mlflow"),
        (WandbLogger(), "wandb"),
        (TrackioLogger(), "trackio"),
        (Tee(JSONLogger(), WandbLogger()), "tee(json, wandb)"),
    ],
)
def test_a_value_and_its_live_logger_have_one_identity(spec, identity):
    assert logger_identity(spec) == identity


def test_the_identity_of_a_users_logger_is_its_class(path):
    mine = Recorder()
    assert logger_identity(mine) == open_logger(mine, path).identity == f"{__name__}.Recorder"


@pytest.mark.parametrize(
    ("spec", "module"),
    [
        (TensorBoardLogger(), "tensorboardX"),
        (MLflowLogger(), "mlflow"),
        (WandbLogger(), "wandb"),
        (TrackioLogger(), "trackio"),
    ],
)
def test_a_tracker_that_is_not_installed_is_named_as_pip_takes_it(path, monkeypatch, spec, module):
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == module:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(MissingExtraError) as err:
        open_logger(Tee(JSONLogger(), spec), path)
    assert re.search(rf"pip install '?{module}\b", str(err.value))
