"""Callbacks: what they are told and when, what they may ask for, and that they keep what they count."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Callback, Device, Nitro
from nitro_cli.analysis import analyze, load_predictions
from nitro_cli.errors import ComponentError, ConfigError, HookError, NotFoundError
from nitro_cli.experiment import CALLBACKS, HookTable, compile_view, graphconst_fingerprint, register_callback
from nitro_cli.registry import read_config, resolve
from nitro_cli.run import UpdateEvent
from nitro_cli.tasks import Categorical
from tests.tiny import Light, points, stop_after


class Log(Callback):
    """Notes what it is told."""

    name: str = "log"
    fails_in: str = ""

    def note(self, method: str, *more: Any) -> None:
        SHARED.append((self.name, method, *more))
        if method == self.fails_in:
            raise ValueError(f"no {method}")

    def on_train_start(self, run: Any) -> None:
        self.note("train_start", run.step)

    def on_epoch_start(self, run: Any) -> None:
        self.note("epoch_start", run.epoch)

    def on_update(self, run: Any, event: UpdateEvent) -> None:
        self.note("update", event.step)

    def on_evaluate(self, run: Any, split: str, metrics: Any) -> None:
        self.note("evaluate", split, sorted(metrics))

    def on_epoch_end(self, run: Any, row: Any) -> None:
        self.note("epoch_end", row["epoch"])

    def on_checkpoint(self, run: Any, path: Any) -> None:
        self.note("checkpoint", path.name[:10])

    def on_train_end(self, run: Any, reason: str) -> None:
        self.note("train_end", reason)


class Other(Log):
    """Another one, so that two may stand side by side."""

    name: str = "other"


class Counts(Callback):
    """Counts updates, and has that as its state."""

    limit: int = 1000
    _updates: int = 0

    def on_update(self, run: Any, event: UpdateEvent) -> None:
        self._updates += 1
        if self._updates >= self.limit:
            run.request_stop()

    def state(self) -> Any:
        return {"updates": self._updates}

    def load_state(self, state: Any, version: int) -> None:
        self._updates = state["updates"]


class Does(Callback):
    """Runs a function at a method."""

    at: str
    do: Any

    def on_update(self, run: Any, event: UpdateEvent) -> None:
        self.do(run, event) if self.at == "update" else None

    def on_epoch_end(self, run: Any, row: Any) -> None:
        self.do(run, row) if self.at == "epoch_end" else None


SHARED: list[Any] = []


@pytest.fixture
def told() -> list[Any]:
    SHARED.clear()
    return SHARED


def methods(told: list[Any], name: str = "log") -> list[str]:
    return [entry[1] for entry in told if entry[0] == name]


def test_they_are_told_of_a_run_in_its_order_and_the_last_started_ends_first(tmp_path: Path, told: list[Any]) -> None:
    Nitro(Light(), callbacks=(Log(), Other()), max_epochs=1, run_dir=tmp_path).train()
    steps = ["update", "update"]
    wanted = ["train_start", "epoch_start", *steps, "evaluate", "epoch_end", "checkpoint", "train_end"]
    assert methods(told) == methods(told, "other") == wanted
    assert told[:2] == [("log", "train_start", 0), ("other", "train_start", 0)]
    assert told[-2:] == [("other", "train_end", "completed"), ("log", "train_end", "completed")]
    assert ("log", "evaluate", "val", ["acc"]) in told
    assert ("log", "checkpoint", "epoch-0001") in told


class Terms(Light):
    """Two loss terms, a train metric, and a batch of which all is masked."""

    samples: int = 32
    optimizer = None

    def build_data(self, dist: Any) -> Any:
        rows = points(32, 1)
        rows["kept"] = (np.arange(32) // 8 != 1).astype(np.float32)
        return {"train": ArrayBatches(rows, 8), "val": ArrayBatches(points(11, 2), 8)}

    def loss(self, outputs: Any, *, y: Any, kept: Any) -> Any:
        from nitro_cli.experiment import Term

        each = -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1)[:, 0]
        return {
            "fit": Term(jnp.sum(each * kept), jnp.sum(kept)),
            "size": Term(jnp.sum(outputs[:, 0] * kept), kept.sum()),
        }

    def train_metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"right": jnp.mean(outputs.argmax(-1) == y)}


@pytest.mark.filterwarnings("ignore:step 2 is not taken")
def test_updates_are_the_committed_steps_with_their_numbers(tmp_path: Path, log_lines: Any) -> None:
    seen: list[UpdateEvent] = []
    nitro = Nitro(Terms(), callbacks=(Does(at="update", do=lambda run, event: seen.append(event)),), run_dir=tmp_path)
    nitro.train()
    assert [(e.step, e.update, e.epoch, e.batch, e.microbatches) for e in seen] == [
        (1, 1, 1, 1, 1),
        (3, 2, 1, 3, 1),
        (4, 3, 1, 4, 1),
    ]
    lines = {line["step"]: line for line in log_lines(nitro, "train")}
    for event in seen:
        line = lines[event.step]
        assert event.loss == pytest.approx(line["loss"], rel=1e-6)
        assert event.losses == {"fit": line["loss/fit"], "size": line["loss/size"]}
        assert event.metrics == {"right": line["right"]}


def test_every_thins_updates_by_their_number(tmp_path: Path) -> None:
    seen: list[int] = []
    thinned = Does(at="update", do=lambda run, event: seen.append(event.update), every=3)
    Nitro(Light(samples=64), callbacks=(thinned,), accum=1, max_epochs=1, run_dir=tmp_path).train()
    assert seen == [3, 6]


def test_batches_count_micro_batches(tmp_path: Path) -> None:
    seen: list[Any] = []
    counted = Does(at="update", do=lambda run, event: seen.append((event.batch, event.microbatches)))
    Nitro(Light(samples=64), callbacks=(counted,), accum=4, max_epochs=1, run_dir=tmp_path).train()
    assert seen == [(4, 4), (8, 4)]


def test_a_handle_works_on_a_copy_and_a_resume_gives_it_its_count_back(tmp_path: Path) -> None:
    mine = Counts()
    nitro = Nitro(Light(), callbacks=(mine,), max_epochs=1, run_dir=tmp_path).train()
    (copy,) = nitro.run_state.rules.callbacks
    assert (mine._updates, copy.state()) == (0, {"updates": 2})
    again = Nitro(Light(), callbacks=(mine,), max_epochs=2, run_dir=tmp_path, resume="auto")
    assert "callbacks.Counts" in again.resume_status.restored
    again.train()
    assert again.run_state.rules.callbacks[0].state() == {"updates": 4}
    with pytest.raises(ComponentError, match=r"callbacks\.Counts"):
        Nitro(Light(), max_epochs=3, run_dir=tmp_path, resume="auto")


def test_a_stop_it_asks_for_saves_the_state_and_a_resume_goes_on(tmp_path: Path, bits: Any) -> None:
    whole = Nitro(Light(samples=64), max_epochs=2, run_dir=tmp_path / "whole").train()
    data = {"train": list(_batches(64)), "val": list(_batches(16))}
    streamed = Nitro(Light(samples=64), data=data, callbacks=(Counts(limit=3),), max_epochs=2, run_dir=tmp_path / "s")
    streamed.train()
    assert (streamed.stop_reason, streamed.stop_cause) == ("requested", "request")
    assert 3 <= streamed.step < 8
    resumed = Nitro(
        Light(samples=64), data=data, callbacks=(Counts(),), max_epochs=2, run_dir=tmp_path / "s", resume="auto"
    ).train()
    assert resumed.step == whole.step == 16
    assert resumed.run_state.rules.callbacks[0].state() == {"updates": 16}


def _batches(samples: int) -> Any:
    rows = points(samples, 1)
    for start in range(0, samples, 8):
        yield {name: value[start : start + 8] for name, value in rows.items()}


class Scaled(Light):
    scale: Device[float] = 1.0

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x * self.scale)


def test_what_it_sees_of_the_run_and_may_ask_for(tmp_path: Path, log_lines: Any) -> None:
    found: dict[str, Any] = {}

    def look(run: Any, row: Any) -> None:
        kernel = run.params()["kernel"]
        kernel[:] = 0.0
        outputs = run.predict({"x": np.ones((3, 6), np.float32)})
        found.update(step=run.step, epoch=run.epoch, row=run.metrics, rows=len(run.history), outputs=outputs)
        run.history.append({"epoch": 9, "step": 9})
        run.log({"norm": 2.5})
        (run.path / "mine.txt").write_text("kept")
        run.set_device(scale=0.5)
        found["scale"] = float(run.experiment.scale)

    nitro = Nitro(Scaled(), callbacks=(Does(at="epoch_end", do=look),), max_epochs=1, run_dir=tmp_path).train()
    assert (found["step"], found["epoch"], found["rows"], len(nitro.history)) == (2, 1, 1, 1)
    assert found["row"]["acc"] == nitro.history[-1]["acc"]
    assert found["scale"] == nitro.device_value("scale") == 0.5
    assert np.abs(np.asarray(nitro.params["kernel"])).max() > 0
    assert found["outputs"].shape == (3, 3)
    assert np.abs(found["outputs"]).max() > 0
    (line,) = log_lines(nitro, "callback")
    assert (line["norm"], line["step"], line["epoch"]) == (2.5, 2, 1)
    assert nitro.run_path is not None
    assert (nitro.run_path / "mine.txt").read_text() == "kept"
    for name in ("params", "step", "plan"):
        with pytest.raises(AttributeError):
            setattr(nitro.run_state.rules.began, name, 1)


@pytest.mark.parametrize("method", ["train_start", "epoch_start", "update", "evaluate", "epoch_end", "checkpoint"])
def test_what_it_raises_fails_the_run_and_those_that_started_are_told(
    tmp_path: Path, told: list[Any], method: str
) -> None:
    nitro = Nitro(Light(), callbacks=(Log(), Other(fails_in=method)), max_epochs=1, run_dir=tmp_path)
    with pytest.raises(HookError, match="the callback Other failed") as failed:
        nitro.train()
    assert failed.value.where == f"Other.on_{method}"
    assert failed.value.why == f"ValueError: no {method}"
    ended = [entry for entry in told if entry[1] == "train_end"]
    started = ["other", "log"] if method != "train_start" else ["log"]
    assert ended == [(name, "train_end", "error") for name in started]


def test_a_failing_end_fails_a_run_that_went_well_and_only_warns_where_another_error_is(
    tmp_path: Path, told: list[Any]
) -> None:
    with pytest.raises(HookError, match="Other failed"):
        Nitro(Light(), callbacks=(Log(), Other(fails_in="train_end")), max_epochs=1, run_dir=tmp_path).train()
    assert told[-1] == ("log", "train_end", "completed")

    class Both(Other):
        def on_update(self, run: Any, event: Any) -> None:
            raise KeyError("first")

    with pytest.warns(UserWarning, match="the callback Both failed"), pytest.raises(HookError) as failed:
        Nitro(Light(), callbacks=(Both(fails_in="train_end"),), max_epochs=1, run_dir=tmp_path).train()
    assert failed.value.where == "Both.on_update"


def test_a_run_with_nothing_to_train_tells_nobody(tmp_path: Path, told: list[Any]) -> None:
    Nitro(Light(), callbacks=(Log(),), max_epochs=1, run_dir=tmp_path).train()
    told.clear()
    Nitro(Light(), callbacks=(Log(),), max_epochs=1, run_dir=tmp_path, resume="auto").train()
    assert told == []


def test_a_stop_inside_an_epoch_and_a_resume_tell_each_update_once(tmp_path: Path, told: list[Any]) -> None:
    nitro = Nitro(Light(samples=64), callbacks=(Log(),), max_epochs=1, run_dir=tmp_path)
    stop_after(nitro, 3)
    nitro.train()
    assert told[-1] == ("log", "train_end", "requested")
    Nitro(Light(samples=64), callbacks=(Log(),), max_epochs=1, run_dir=tmp_path, resume="auto").train()
    assert [entry[2] for entry in told if entry[1] == "update"] == list(range(1, 9))


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two callbacks are both called Counts"):
        Nitro(Light(), callbacks=(Counts(), Counts(limit=2)), run_dir=tmp_path)


@pytest.fixture
def registered() -> Any:
    @register_callback("counts_of_a_test")
    class Registered(Counts):
        pass

    yield Registered
    CALLBACKS._held.pop(("counts_of_a_test", 1))


def test_toml_and_set_name_it_by_its_id_and_the_record_rebuilds_it(tmp_path: Path, registered: Any) -> None:
    sets = ('callbacks=[{id="counts_of_a_test", limit=7}]', "callbacks.counts_of_a_test.every=2")
    resolved = resolve(Light, None, sets)
    assert resolved.experiment.callbacks == (registered(limit=7, every=2),)
    nitro = Nitro(resolved, max_epochs=1, run_dir=tmp_path).train()
    assert nitro.run_path is not None
    assert read_config(nitro.run_path / "config.toml", cls=Light).experiment.callbacks == resolved.experiment.callbacks
    with pytest.raises(ConfigError, match="counts_of_a_test"):
        resolve(Light, None, ('callbacks=["count_of_a_test"]',))


def test_no_program_depends_on_them_and_traced_hooks_do_not_see_them() -> None:
    assert graphconst_fingerprint(Light()) == graphconst_fingerprint(Light(callbacks=(Counts(),)))
    e = Light(callbacks=(Counts(),))
    assert "callbacks" not in HookTable(e).owners()
    with pytest.raises(Exception, match="callbacks"):
        len(compile_view(e).callbacks)


def test_an_installed_distribution_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "watchers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: watchers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nitro.callbacks]\nquiet_one = watchers:Quiet\n")
    (tmp_path / "watchers.py").write_text(
        "from nitro_cli import Callback\nfrom nitro_cli.experiment import register_callback\n"
        "@register_callback('quiet_one')\nclass Quiet(Callback):\n    depth: int = 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NITRO_NO_PLUGINS", "0")
    importlib.invalidate_caches()
    try:
        (found,) = Light(callbacks=({"id": "quiet_one", "depth": 3},)).callbacks
        assert (type(found).__name__, found.depth) == ("Quiet", 3)
    finally:
        sys.modules.pop("watchers", None)
        CALLBACKS._held.pop(("quiet_one", 1), None)


class Tasked(Light):
    """`Light` whose task says what its outputs mean."""

    loss = None
    metrics = None
    task: Categorical = Categorical(3, target="y", metrics=("accuracy",))
    monitor = ("accuracy", "max")


def test_save_predictions_writes_what_analyze_reads(tmp_path: Path) -> None:
    words = {"callbacks": ({"id": "save_predictions", "every": 2, "splits": ["val", "test"]},), "max_epochs": 3}
    nitro = Nitro(Tasked(), run_dir=tmp_path, **words).train()
    assert nitro.run_path is not None
    folder = nitro.run_path / "predictions"
    assert sorted(path.name for path in folder.iterdir()) == ["test-epoch-0002.npz", "val-epoch-0002.npz"]
    read = load_predictions(folder / "val-epoch-0002.npz")
    assert (read.origin.run, read.origin.split, len(read)) == (nitro.run_id, "val", 11)
    assert analyze(read).metrics.values["accuracy"] == pytest.approx(nitro.history[2]["accuracy"])


def test_what_outputs_mean_may_be_said_to_save_predictions_and_a_wrong_split_fails_the_run(tmp_path: Path) -> None:
    said = {"id": "save_predictions", "kind": "categorical", "target": "y", "labels": ["a", "b", "c"], "fields": ["x"]}
    nitro = Nitro(Light(), callbacks=(said,), max_epochs=1, run_dir=tmp_path).train()
    assert nitro.run_path is not None
    read = load_predictions(nitro.run_path / "predictions" / "val-epoch-0001.npz")
    assert read.labels == ("a", "b", "c")
    right = float(np.mean(np.asarray(read.decoded) == np.asarray(read.target)))
    assert right == pytest.approx(nitro.history[-1]["acc"])
    with pytest.raises(NotFoundError, match="no split 'vall'"):
        Nitro(Light(), callbacks=({**said, "splits": ["vall"]},), max_epochs=1, run_dir=tmp_path).train()


def test_a_preset_that_names_save_predictions_is_read_without_jax() -> None:
    code = (
        "import sys; from nitro_cli.experiment import CALLBACKS; found = CALLBACKS.find('save_predictions'); "
        "found(every=2); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
