"""The adapters, with the real libraries writing locally; one that is not installed is skipped."""

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from nitro_cli.errors import ConfigError, NitroWarning
from nitro_cli.experiment import MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger
from nitro_cli.tracking import open_logger, reattach_logger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "MnistMLP" / "a1b2c3d4" / "metrics.jsonl"


def every_verb(live):
    """What a short run logs."""
    live.log_params({"seed": 42, "width": 128, "rate": 0.5, "path": Path("x/y"), "off": None})
    live.log_other("binding_report", "one line\nand another")
    for step in (1, 2):
        live.log_metrics({"loss": 1.0 / step, "bad": math.nan}, step=step, epoch=1, context="train")
    live.log_metrics({"acc": 0.5, "recall": np.asarray([0.25, 0.75])}, step=2, epoch=1, context="validate")
    live.log_tags(["baseline"])
    live.log_confusion(np.asarray([[3, 1], [0, 2]]), ["cat", "dog"], epoch=1)


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("tensorboardX")

    def events(self, directory):
        """Decode the event files: records of length, CRC, event, CRC."""
        from tensorboardX.proto.event_pb2 import Event

        out = []
        for file in sorted(directory.iterdir()):
            data = file.read_bytes()
            while data:
                (length,) = struct.unpack("<Q", data[:8])
                out.append(Event.FromString(data[12 : 12 + length]))
                data = data[16 + length :]
        return out

    def scalars(self, directory):
        return {
            (value.tag, event.step): value.simple_value
            for event in self.events(directory)
            for value in event.summary.value
            if value.HasField("simple_value")
        }

    def test_scalars_are_written_under_context_and_step(self, path):
        live = open_logger(TensorBoardLogger(), path)
        every_verb(live)
        live.finish("completed")
        assert self.scalars(path.parent / "tensorboard") == {
            ("train/loss", 1): 1.0,
            ("train/loss", 2): 0.5,
            ("validate/acc", 2): 0.5,
        }

    def test_parameters_and_matrices_are_tables_and_arrays_histograms(self, path):
        live = open_logger(TensorBoardLogger(log_dir=path.parent / "tb"), path)
        every_verb(live)
        live.finish("completed")
        values = [value for event in self.events(path.parent / "tb") for value in event.summary.value]
        texts = {
            value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
            for value in values
            if value.tensor.string_val
        }
        assert "| width | 128 |" in texts["params"]
        assert "| cat | 3 | 1 |" in texts["confusion"]
        assert texts["binding_report"] == "one line\nand another"
        assert texts["status"] == "completed"
        (histogram,) = [value for value in values if value.HasField("histo")]
        assert histogram.tag == "validate/recall"
        assert (histogram.histo.min, histogram.histo.max, histogram.histo.num) == (0.25, 0.75, 2)

    @pytest.mark.filterwarnings("ignore::nitro_cli.errors.NitroWarning")
    def test_names_that_histograms_make_one_stay_two(self, path):
        live = open_logger(TensorBoardLogger(), path)
        arrays = {"acc@1": np.asarray([1.0]), "acc#1": np.asarray([2.0]), "acc_1": np.asarray([3.0])}
        live.log_metrics(arrays, step=1, epoch=1, context="validate")
        live.finish("completed")
        values = [value for event in self.events(path.parent / "tensorboard") for value in event.summary.value]
        assert len({value.tag for value in values if value.HasField("histo")}) == 3

    def test_the_share_of_waiting_is_under_data(self, path):
        live = open_logger(TensorBoardLogger(), path)
        live.log_metrics({"data/wait_frac": 0.25}, step=1, epoch=1, context="data")
        live.finish("completed")
        assert self.scalars(path.parent / "tensorboard") == {("data/wait_frac", 1): 0.25}

    def test_a_resumed_run_purges_what_was_logged_after_its_checkpoint(self, path):
        first = open_logger(TensorBoardLogger(), path)
        first.log_metrics({"loss": 1.0}, step=1, epoch=1, context="train")
        state = json.loads(json.dumps(first.state()))
        first.log_metrics({"loss": 9.0}, step=2, epoch=1, context="train")
        first.backend.close()
        again = open_logger(TensorBoardLogger(), path)
        reattach_logger(again, "tensorboard", state)
        again.log_metrics({"loss": 0.5}, step=2, epoch=1, context="train")
        again.finish("completed")
        from tensorboardX.proto.event_pb2 import SessionLog

        starts = [e.step for e in self.events(path.parent / "tensorboard") if e.session_log.status == SessionLog.START]
        assert starts == [2]


class TestMLflow:
    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        # Its plain-file store needs no database driver; newer releases ask for this consent.
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
        pytest.importorskip("mlflow")

    @pytest.fixture
    def spec(self, tmp_path):
        return MLflowLogger(tracking_uri=(tmp_path / "mlruns").as_uri(), tags={"team": "vision"})

    def history(self, live, name):
        return [(m.step, m.value) for m in live.backend.get_metric_history(live.run_id, name)]

    def test_everything_a_run_logs_is_in_the_mlflow_run(self, path, spec):
        live = open_logger(spec, path)
        every_verb(live)
        live.finish("completed")
        run = live.backend.get_run(live.run_id)
        assert run.info.run_name == "a1b2c3d4"
        assert run.info.status == "FINISHED"
        assert live.backend.get_experiment(run.info.experiment_id).name == "MnistMLP"
        assert run.data.params == {"seed": "42", "width": "128", "rate": "0.5", "path": "x/y", "off": "None"}
        assert run.data.tags["team"] == "vision"
        assert "baseline" in run.data.tags
        assert self.history(live, "train/loss") == [(1, 1.0), (2, 0.5)]
        assert set(run.data.metrics) == {"train/loss", "validate/acc"}
        files = {f.path for f in live.backend.list_artifacts(run.info.run_id)}
        assert "binding_report.txt" in files

    def test_queued_metrics_are_sent_at_the_end_of_an_epoch(self, path, spec):
        live = open_logger(spec, path)
        live.log_metrics({"loss": 1.0}, step=1, epoch=1, context="train")
        assert self.history(live, "train/loss") == []
        live.log_metrics({"acc": 1.0}, step=1, epoch=1, context="validate")
        assert self.history(live, "train/loss") == [(1, 1.0)]

    @pytest.mark.parametrize(("status", "expected"), [("error", "FAILED"), ("requested", "KILLED")])
    def test_the_stop_reason_is_the_status_of_the_run(self, path, spec, status, expected):
        live = open_logger(spec, path)
        live.finish(status)
        assert live.backend.get_run(live.run_id).info.status == expected

    def test_a_resumed_run_continues_and_keeps_the_first_value_of_a_changed_parameter(self, path, spec):
        first = open_logger(spec, path)
        first.log_params({"seed": 1, "max_epochs": 1})
        first.log_metrics({"loss": 1.0}, step=1, epoch=1, context="train")
        state = json.loads(json.dumps(first.state()))
        first.finish("requested")
        again = open_logger(spec, path)
        reattach_logger(again, "mlflow", state)
        with pytest.warns(NitroWarning, match="max_epochs"):
            again.log_params({"seed": 1, "max_epochs": 2, "new": 3})
        again.log_metrics({"loss": 0.5}, step=2, epoch=2, context="train")
        again.finish("completed")
        run = again.backend.get_run(first.run_id)
        assert run.data.params == {"seed": "1", "max_epochs": "1", "new": "3"}
        assert run.data.tags["resumed.max_epochs"] == "2"
        assert run.info.status == "FINISHED"
        assert self.history(again, "train/loss") == [(1, 1.0), (2, 0.5)]

    def test_a_changed_parameter_follows_every_resume_also_back_to_its_first_value(self, path, spec):
        live = open_logger(spec, path)
        live.log_params({"rate": 0.1})
        for rate in (0.2, 0.3, 0.1):
            with pytest.warns(NitroWarning, match="rate"):
                live.log_params({"rate": rate})
            data = live.backend.get_run(live.run_id).data
            assert (data.params["rate"], data.tags["resumed.rate"]) == ("0.1", str(rate))

    @pytest.mark.filterwarnings("ignore::nitro_cli.errors.NitroWarning")
    def test_names_that_mlflow_makes_one_stay_two_also_in_a_resumed_run(self, path, spec):
        live = open_logger(spec, path)
        live.log_metrics({"acc@1": 0.1, "acc#1": 0.2, "acc_1": 0.3}, step=1, epoch=1, context="validate")
        state = json.loads(json.dumps(live.state()))
        again = open_logger(spec, path)
        reattach_logger(again, "mlflow", state)
        again.log_metrics({"acc_1": 0.6, "acc#1": 0.5, "acc@1": 0.4}, step=2, epoch=2, context="validate")
        names = again.backend.get_run(again.run_id).data.metrics
        assert len(names) == 3
        assert sorted(self.history(again, name) for name in names) == [
            [(1, 0.1), (2, 0.4)], [(1, 0.2), (2, 0.5)], [(1, 0.3), (2, 0.6)],
        ]  # fmt: skip

    @pytest.mark.filterwarnings("ignore::nitro_cli.errors.NitroWarning")
    @pytest.mark.parametrize("name", ["/abs", "a//b", "./a", "../a", "a/../b", "a/", "é@", "x" * 400])
    def test_a_name_that_is_no_path_of_its_own_is_logged(self, path, spec, name):
        live = open_logger(spec, path)
        live.log_metrics({name: 0.5, f"{name}@": 0.25}, step=1, epoch=1, context="validate")
        assert sorted(live.backend.get_run(live.run_id).data.metrics.values()) == [0.25, 0.5]

    def test_a_store_that_mlflow_refuses_says_what_to_set(self, path, spec, monkeypatch):
        monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
        import mlflow

        if int(mlflow.__version__.split(".")[0]) < 3:
            pytest.skip("it takes a directory")
        with pytest.raises(ConfigError) as refused:
            open_logger(spec, path)
        error = refused.value
        assert spec.tracking_uri in error.what
        assert error.where == "logger.tracking_uri"
        assert "MLFLOW_ALLOW_FILE_STORE=true" in error.fix
        assert "sqlite:///mlflow.db" in error.fix
        assert len(str(error)) < 900

    def test_a_name_mlflow_refuses_is_changed_with_a_warning(self, path, spec):
        live = open_logger(spec, path)
        with pytest.warns(NitroWarning, match="ap@50"):
            live.log_metrics({"ap@50": 0.5}, step=1, epoch=1, context="validate")
        assert self.history(live, "validate/ap_50") == [(1, 0.5)]


class TestWandb:
    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch, tmp_path):
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
            monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
        monkeypatch.setenv("WANDB_SILENT", "true")
        pytest.importorskip("wandb")

    def records(self, path):
        """Decode the offline files: a header of 7 bytes, then the LevelDB log format in blocks of 32 KiB."""
        import wandb
        from wandb.proto import wandb_internal_pb2

        # The files are written by a process of the library's, which this waits for.
        wandb.teardown()
        out = []
        for file in sorted(path.parent.glob("wandb/offline-run-*/*.wandb")):
            data, at, message = file.read_bytes(), 7, b""
            while at + 7 <= len(data):
                left = 32768 - at % 32768
                if left < 7:
                    at += left
                    continue
                _, length, kind = struct.unpack("<IHB", data[at : at + 7])
                message += data[at + 7 : at + 7 + length]
                at += 7 + length
                if kind in (1, 4):  # full, last
                    out.append(wandb_internal_pb2.Record.FromString(message))
                    message = b""
        return out

    def rows(self, path):
        return [
            {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in self.records(path)
            if record.WhichOneof("record_type") == "history"
        ]

    def test_everything_a_run_logs_is_in_the_offline_run(self, path):
        live = open_logger(WandbLogger(mode="offline", tags=("paper",)), path)
        every_verb(live)
        live.finish("completed")
        rows = self.rows(path)
        assert [(r["step"], r["train/loss"]) for r in rows if "train/loss" in r] == [(1, 1.0), (2, 0.5)]
        assert all("train/bad" not in r for r in rows)
        (validation,) = [r for r in rows if "validate/acc" in r]
        assert validation["step"] == 2
        assert validation["validate/recall/_type"] == "histogram"
        (run, *_) = [r.run for r in self.records(path) if r.WhichOneof("record_type") == "run"]
        assert run.project == "MnistMLP"
        assert run.display_name == "a1b2c3d4"
        assert "paper" in run.tags
        configs = [r.config for r in self.records(path) if r.WhichOneof("record_type") == "config"]
        logged = {item.key: item.value_json for config in configs for item in config.update}
        assert logged["width"] == "128"

    def test_a_resumed_run_has_the_id_it_had_and_may_go_back_in_steps(self, path):
        first = open_logger(WandbLogger(mode="offline"), path)
        first.log_metrics({"loss": 1.0}, step=5, epoch=1, context="train")
        state = json.loads(json.dumps(first.state()))
        first.finish("requested")
        again = open_logger(WandbLogger(mode="offline"), path)
        reattach_logger(again, "wandb", state)
        again.log_metrics({"loss": 0.5}, step=4, epoch=1, context="train")
        assert again.run_id == again.backend.id == state["run_id"]
        again.finish("completed")
        assert [(r["step"], r["train/loss"]) for r in self.rows(path) if "train/loss" in r] == [(5, 1.0), (4, 0.5)]


class TestTrackio:
    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch, tmp_path):
        trackio = pytest.importorskip("trackio")
        from trackio import sqlite_storage, utils

        for module in (trackio, sqlite_storage, utils):
            if hasattr(module, "TRACKIO_DIR"):
                monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")

    def rows(self, name="a1b2c3d4"):
        from trackio.sqlite_storage import SQLiteStorage

        return SQLiteStorage.get_logs("MnistMLP", name)

    def test_everything_a_run_logs_is_in_the_local_project(self, path, capsys):
        live = open_logger(TrackioLogger(), path)
        every_verb(live)
        live.finish("completed")
        rows = self.rows()
        assert [(r["step"], r["train/loss"]) for r in rows if "train/loss" in r] == [(1, 1.0), (2, 0.5)]
        assert all("train/bad" not in r for r in rows)
        (validation,) = [r for r in rows if "validate/acc" in r]
        assert validation["validate/acc"] == 0.5
        assert validation["validate/recall"]["_type"] == "trackio.histogram"
        from trackio.sqlite_storage import SQLiteStorage

        assert SQLiteStorage.get_run_config("MnistMLP", "a1b2c3d4")["width"] == 128
        assert capsys.readouterr().out == ""

    def test_a_resumed_run_continues_under_its_name(self, path):
        first = open_logger(TrackioLogger(), path)
        first.log_metrics({"loss": 1.0}, step=1, epoch=1, context="train")
        state = json.loads(json.dumps(first.state()))
        first.finish("requested")
        again = open_logger(TrackioLogger(), path)
        reattach_logger(again, "trackio", state)
        again.log_metrics({"loss": 0.5}, step=2, epoch=1, context="train")
        again.finish("completed")
        assert [(r["step"], r["train/loss"]) for r in self.rows() if "train/loss" in r] == [(1, 1.0), (2, 0.5)]
