"""A handle that answers: prediction, Device values, serving without data, weights from elsewhere."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import EMA, Checkpointer, Device, GraphConst, Nitro, read_manifest
from nitro_cli.errors import ConfigError, DataError, ExitCode, HookError, IncompatibleError, NotFoundError, RoutingError
from tests.tiny import CLASSES, FEATURES, Quick, points


class Served(Quick):
    """Derives what it divides by from its training data; a Device field of each kind."""

    temperature: Device[float] = 1.0
    offset: Device[Any] = np.zeros(CLASSES, np.float32)
    scheduled: Device[float] = 1.0
    scale: Device[float] = 0.0
    ema = EMA(0.5)
    samples = 16
    max_epochs = 2
    checkpointer = Checkpointer(keep=("last(2)",))

    def derive(self, data: Any) -> dict[str, Any]:
        type(self).derived += 1
        return {"scale": float(np.abs(data["train"].arrays["x"]).max())}

    def schedules(self) -> dict[str, Any]:
        return {"scheduled": lambda step: 1.0 + step}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        logits, state = model(params, state, x / self.scale)
        return logits / self.temperature * self.scheduled + self.offset, state


Served.derived = 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        return Nitro(Served(), run_dir=tmp_path_factory.mktemp("served")).train()


def batch(rows: int, seed: int = 9) -> dict[str, np.ndarray]:
    return points(rows, seed)


# Prediction


def test_a_batch_of_any_size_up_to_the_compiled_one_gives_one_output_per_sample(trained: Nitro) -> None:
    data = batch(8)
    whole = trained.predict(data)
    assert isinstance(whole, np.ndarray)
    assert whole.shape == (8, CLASSES)
    for rows in (1, 3, 7):
        part = trained.predict({"x": data["x"][:rows]})
        np.testing.assert_array_equal(part, whole[:rows])


def test_an_iterable_is_answered_batch_by_batch_as_it_is_read(trained: Nitro) -> None:
    read: list[int] = []

    def source() -> Any:
        for rows in (8, 8, 5):
            read.append(rows)
            yield batch(rows)

    answers = trained.predict(source())
    assert isinstance(answers, types.GeneratorType)
    assert read == []
    assert next(answers).shape == (8, CLASSES)
    assert read == [8]
    assert [answer.shape[0] for answer in answers] == [8, 5]


def test_a_batch_that_is_too_wide_is_refused_with_both_sizes(trained: Nitro) -> None:
    with pytest.raises(DataError, match=r"9 samples.*8") as raised:
        trained.predict(batch(9))
    assert raised.value.exit_code == ExitCode.USAGE


def test_a_bare_array_is_answered_with_how_to_write_it(trained: Nitro) -> None:
    with pytest.raises(RoutingError, match=r"predict\(dict\(x=\.\.\.\)\)"):
        trained.predict(batch(2)["x"])


def test_a_missing_input_is_named(trained: Nitro) -> None:
    with pytest.raises(RoutingError, match="'x'"):
        trained.predict({"y": batch(2)["y"]})


def test_an_output_whose_first_axis_is_not_the_batch_is_named(tmp_path: Path) -> None:
    class Reducing(Served):
        def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
            logits, state = model(params, state, x)
            return {"logits": logits, "mean": logits.mean(axis=0)}, state

        def metrics(self, outputs: Any, *, y: Any) -> Any:
            return {}

        def loss(self, outputs: Any, *, y: Any) -> Any:
            return outputs["mean"].sum()

    with pytest.raises(HookError, match=r"the output mean of shape \(3,\)"):
        Nitro(Reducing(checkpointer=None), run_dir=tmp_path)
    with pytest.raises(
        HookError, match=r"the output mean of shape \(3,\).*\n.*the first axis of an output is the batch"
    ):
        Nitro(Reducing(checkpointer=None), data={}).predict(batch(8))


# Device values


def test_a_device_value_is_read_back_and_set_without_another_program(trained: Nitro) -> None:
    before = trained.predict(batch(4))
    assert trained.device_value("temperature") == 1.0
    trained.set_device(temperature=0.5, offset=np.array([0, 0, 7], np.float32))
    np.testing.assert_allclose(trained.predict(batch(4)), before * 2 + [0, 0, 7], rtol=1e-6)
    np.testing.assert_array_equal(trained.device_value("offset"), [0, 0, 7])
    assert trained.experiment.temperature == 0.5
    trained.set_device(temperature=1.0, offset=np.zeros(CLASSES, np.float32))
    np.testing.assert_array_equal(trained.predict(batch(4)), before)


@pytest.mark.parametrize(
    "two",
    [2, 2.0, np.int64(2), np.float16(2), np.float64(2), np.array(2), np.array(2.0, np.float32), jnp.asarray(2)],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_a_number_is_set_as_construction_takes_it(two: Any, trained: Nitro) -> None:
    try:
        assert trained.set_device(temperature=two).device_value("temperature") == 2.0
        assert Served(temperature=two).temperature == 2.0
    finally:
        trained.set_device(temperature=1.0)


def test_a_scheduled_field_reads_as_of_the_last_step(trained: Nitro) -> None:
    assert trained.device_value("scheduled") == 1.0 + 3  # the schedule counts from 0, as in optax


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a GraphConst field": ({"width": 3}, "width is a graphconst field"),
    "a Host field": ({"samples": 3}, "samples is a host field"),
    "a scheduled field": ({"scheduled": 3.0}, "scheduled is scheduled"),
    "a bool": ({"temperature": True}, "temperature"),
    "a bool of numpy": ({"temperature": np.bool_(True)}, "temperature"),
    "a text": ({"temperature": "2"}, "temperature"),
    "an array with an axis": ({"temperature": np.ones(1, np.float32)}, "temperature"),
    "another dtype": ({"offset": np.zeros(3, np.int32)}, r"float32\[3\].*int32\[3\]"),
    "another shape": ({"offset": np.zeros(2, np.float32)}, r"float32\[3\].*float32\[2\]"),
    "no field": ({"temprature": 1.0}, "temperature"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_set_is_refused_with_its_reason_and_nothing_is_set(what: str, trained: Nitro) -> None:
    values, words = REFUSED[what]
    with pytest.raises(ConfigError, match=words):
        trained.set_device(smoothing=0.25, **values)
    assert trained.device_value("smoothing") == 0.0


def test_reading_what_is_no_device_field_is_refused(trained: Nitro) -> None:
    with pytest.raises(ConfigError, match="host field"):
        trained.device_value("samples")
    with pytest.raises(ConfigError, match="temperature"):
        trained.device_value("temperatur")


# Serving and warm starts


def test_serving_builds_no_data_restores_what_was_derived_and_makes_no_run(trained: Nitro, tmp_path: Path) -> None:
    class NoData(Served):
        def build_data(self, dist: Any) -> Any:
            raise AssertionError("serving needs no data")

        def derive(self, data: Any) -> Any:
            raise AssertionError("what was derived is in the record")

    path = str(trained.run_dir / max(read_manifest(trained.run_dir).entries, key=lambda e: e.step).path)
    serving = Nitro(NoData(), data={}, weights=path, run_dir=tmp_path / "serving")
    assert serving.experiment.scale == trained.experiment.scale > 1
    np.testing.assert_array_equal(serving.params["head"]["kernel"], trained.params["head"]["kernel"])
    np.testing.assert_array_equal(serving.ema["head"]["kernel"], trained.ema["head"]["kernel"])
    serving.predict(batch(5))
    assert serving.predict(batch(2)).shape == (2, CLASSES)
    with pytest.raises(ConfigError, match="nothing to train on"):
        serving.train()
    with pytest.raises(NotFoundError, match="none"):
        serving.evaluate("test")
    assert not (tmp_path / "serving").exists()


def test_weights_from_a_record_skip_derive_and_start_a_new_run_at_step_zero(trained: Nitro, tmp_path: Path) -> None:
    calls = Served.derived
    path = str(trained.run_dir / max(read_manifest(trained.run_dir).entries, key=lambda e: e.step).path)
    warm = Nitro(Served(), weights=path, run_dir=tmp_path)
    assert Served.derived == calls
    assert warm.device_value("scale") == trained.device_value("scale")
    assert (warm.step, warm.epoch, len(warm.history)) == (0, 0, 0)
    np.testing.assert_array_equal(warm.state["mean"], trained.state["mean"])
    assert not any(leaf.any() for leaf in momentum(warm))
    warm.train()
    assert (warm.step, warm.epoch) == (4, 2)
    assert read_manifest(tmp_path).runs[warm.run_id].parent is None


def momentum(nitro: Nitro) -> list[np.ndarray]:
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(nitro.train_state.opt) if np.ndim(leaf)]


def test_restore_optimizer_takes_the_records_optimizer_state(trained: Nitro, tmp_path: Path) -> None:
    path = str(trained.run_dir / max(read_manifest(trained.run_dir).entries, key=lambda e: e.step).path)
    warm = Nitro(Served(), weights=path, restore_optimizer=True, run_dir=tmp_path)
    for one, other in zip(momentum(warm), momentum(trained), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ConfigError, match="restore_optimizer without"):
        Nitro(Served(), restore_optimizer=True, run_dir=tmp_path)


def test_load_ema_starts_from_the_average(trained: Nitro, tmp_path: Path) -> None:
    path = str(trained.run_dir / max(read_manifest(trained.run_dir).entries, key=lambda e: e.step).path)
    for source in (path, trained):
        warm = Nitro(Served(), weights=source, load_ema=True, run_dir=tmp_path)
        np.testing.assert_array_equal(warm.params["head"]["kernel"], trained.ema["head"]["kernel"])
    plain = Nitro(Served(ema=None), run_dir=tmp_path)
    with pytest.raises(IncompatibleError, match="no EMA"):
        Nitro(Served(), weights=plain, load_ema=True, run_dir=tmp_path)


def test_a_live_handle_is_a_source_of_weights_and_stays_itself(trained: Nitro, tmp_path: Path) -> None:
    before = np.array(trained.params["head"]["kernel"])
    warm = Nitro(Served(), weights=trained, run_dir=tmp_path).train()
    np.testing.assert_array_equal(trained.params["head"]["kernel"], before)
    assert not np.array_equal(warm.params["head"]["kernel"], before)
    assert "live handle of Served at epoch 2, step 4" in Nitro(Served(), weights=trained).checkpoint_source


def test_weights_under_another_graphconst_value_of_the_same_shapes_are_told(trained: Nitro, tmp_path: Path) -> None:
    class Tagged(Served):
        tag: GraphConst[str] = "a"

    path = str(trained.run_dir / max(read_manifest(trained.run_dir).entries, key=lambda e: e.step).path)
    Nitro(Tagged(), weights=path, run_dir=tmp_path)
    with pytest.warns(UserWarning, match="tag: 'b' here"):
        Nitro(Tagged(tag="b"), weights=path, run_dir=tmp_path)


def test_evaluating_and_predicting_make_no_run(tmp_path: Path) -> None:
    nitro = Nitro(Served(), run_dir=tmp_path / "runs")
    nitro.validate()
    nitro.evaluate()
    nitro.predict({"x": np.zeros((1, FEATURES), np.float32)})
    assert (nitro.run_id, nitro.run_path, nitro.best) == (None, None, None)
    assert not (tmp_path / "runs").exists()
