"""What the trackers of a resumed run are told of its parameters."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from nitro_cli import Nitro
from nitro_cli.errors import NitroWarning
from nitro_cli.tracking import JSONLogger, MLflowLogger, Tee
from tests.tiny import Bare


class Log:
    """Keeps the parameters it is told."""

    told: ClassVar[list[dict[str, Any]]] = []

    def log_params(self, params):
        self.told.append(dict(params))

    def log_metrics(self, metrics, *, step, epoch, context):
        pass

    def log_other(self, key, value):
        pass

    def finish(self, status):
        pass


class Logged(Bare):
    max_epochs = 1
    learning_rate = 1e-3


@pytest.fixture
def told(monkeypatch):
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(Log, "told", made)
    return made


def test_a_resume_with_other_parameters_tells_every_tracker_the_new_ones(tmp_path, told, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    logger = Tee(JSONLogger(), MLflowLogger(tracking_uri=(tmp_path / "ml").as_uri()), Log())
    first = Nitro(Logged(logger=logger), run_dir=tmp_path / "runs").train()
    again = Nitro(Logged(logger=logger, max_epochs=2, learning_rate=5e-4), run_dir=tmp_path / "runs", resume="auto")
    with pytest.warns(NitroWarning, match="MLflow keeps the first value of"):
        again.train()
    assert again.run_id == first.run_id
    assert [(p["max_epochs"], p["learning_rate"]) for p in told] == [(1, 1e-3), (2, 5e-4)]
    lines = [json.loads(line) for line in (again.run_path / "metrics.jsonl").read_text().splitlines()]
    written = [line for line in lines if line["type"] == "params"]
    assert [(p["max_epochs"], p["learning_rate"]) for p in written] == [(1, 1e-3), (2, 5e-4)]
    client = again.logger.backend[1]
    data = client.get_run(again.logger.loggers[1].run_id).data
    assert (data.params["max_epochs"], data.params["learning_rate"]) == ("1", "0.001")
    assert (data.tags["resumed.max_epochs"], data.tags["resumed.learning_rate"]) == ("2", "0.0005")


def test_a_resume_with_the_same_parameters_tells_them_once(tmp_path, told):
    e = Logged(logger=Log(), max_epochs=3)
    stopped = Nitro(e, run_dir=tmp_path)
    stopped.register_phase_monitor(lambda phase, step, epoch, info: step == 8 and stopped.request_stop())
    stopped.train()
    assert stopped.stop_reason == "requested"
    Nitro(e, run_dir=tmp_path, resume="auto").train()
    assert len(told) == 1


def test_a_resume_that_trains_nothing_tells_nothing(tmp_path, told):
    Nitro(Logged(logger=Log()), run_dir=tmp_path).train()
    with pytest.warns(NitroWarning, match="already at epoch 1"):
        Nitro(Logged(logger=Log(), learning_rate=5e-4), run_dir=tmp_path, resume="auto").train()
    assert len(told) == 1
