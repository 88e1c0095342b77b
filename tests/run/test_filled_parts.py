"""Parts of an experiment fill in what they leave open, from the data and from each other; records keep it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Device, Experiment, Nitro, checkpoint_info, read_manifest
from nitro_cli.errors import ConfigError, HookError
from nitro_cli.experiment import Declared, Hook, Host, Part
from nitro_cli.registry import read_config

ROWS = 24


class Rows(Part):
    """Bytes with a class each; the model sees them in 0..1, shifted by what was fitted on the train split."""

    classes: Host[int] = 3
    shift: Device[float | None] = None
    augment: bool = False

    def hooks(self) -> Mapping[str, Hook]:
        return {"build_data": Hook(self._build), "prepare": Hook(self._prepare)}

    def _build(self, dist: Any) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        arrays = {"pixels": rng.integers(0, 255, (ROWS, 4), np.uint8), "y": np.arange(ROWS, dtype=np.int32) % 3}
        return {"train": ArrayBatches(arrays, 8), "val": ArrayBatches(arrays, 8)}

    def _prepare(self, inputs: Mapping[str, Any], train: bool, key: Any) -> dict[str, Any]:
        if "pixels" not in inputs:
            return {}
        x = inputs["pixels"].astype(jnp.float32) / 255
        if self.shift is not None:
            x = x - self.shift
        if train and self.augment:
            x = x + jax.random.normal(key, x.shape)
        return {"pixels": jnp.concatenate([x, x], axis=-1)}

    def declares(self, data: Mapping[str, Any]) -> Declared:
        return Declared(inputs=("pixels",), num_classes=self.classes)

    def fills(self, data: Mapping[str, Any], batch: Any, declared: Declared) -> dict[str, Any]:
        return {"shift": 0.25} if data and self.shift is None else {}


class Linear(Part):
    """A matrix, as wide as the task wants it."""

    inputs: tuple[str, ...] | None = None
    width: int | None = None
    outputs: int | None = None

    def fills(self, data: Mapping[str, Any], batch: Any, declared: Declared) -> dict[str, Any]:
        taken = declared.inputs or self.inputs
        width = batch[taken[0]].shape[0] if taken and taken[0] in batch else self.width
        return {"inputs": taken, "width": width, "outputs": declared.outputs or self.outputs}

    def hooks(self) -> Mapping[str, Hook]:
        return {"build_model": Hook(self._build), "forward": Hook(self._forward, {n: n for n in self.inputs or ()})}

    def _build(self, rng: jax.Array) -> Any:
        kernel = jax.random.normal(rng, (self.width, self.outputs))
        return (lambda params, state, x: x @ params["kernel"]), {"kernel": kernel}, {}

    def _forward(self, model: Any, params: Any, state: Any, **inputs: Any) -> Any:
        return model(params, state, *inputs.values())


class Classes(Part):
    """Cross-entropy over as many classes as the data has."""

    num_classes: int | None = None

    def declares(self, data: Mapping[str, Any]) -> Declared:
        return Declared(num_classes=self.num_classes, outputs=self.num_classes)

    def fills(self, data: Mapping[str, Any], batch: Any, declared: Declared) -> dict[str, Any]:
        return {} if declared.num_classes is None else {"num_classes": declared.num_classes}

    def hooks(self) -> Mapping[str, Hook]:
        return {"loss": Hook(self._loss, {"y": "y"})}

    def _loss(self, outputs: Any, *, y: Any) -> Any:
        wanted = jax.nn.one_hot(y, self.num_classes)
        return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(outputs), axis=-1))


class Whole(Experiment):
    """Nothing but parts."""

    data: Rows = Rows()
    network: Linear = Linear()
    task: Classes = Classes()

    max_epochs = 1
    logger = None


def newest(nitro: Nitro) -> Path:
    return nitro.run_dir / max(read_manifest(nitro.run_dir).entries, key=lambda entry: entry.step).path


def test_sizes_follow_from_the_prepared_batch_and_through_the_task_from_the_data(tmp_path: Path) -> None:
    nitro = Nitro(Whole(), run_dir=tmp_path)
    e = nitro.experiment
    assert (e.network.inputs, e.network.width, e.network.outputs) == (("pixels",), 8, 3)
    assert (e.task.num_classes, e.data.shift) == (3, 0.25)
    assert nitro.params["kernel"].shape == (8, 3)
    rows = {row["field"]: row["origin"] for row in nitro.report.as_json()["filled in"]}
    assert rows == dict.fromkeys(
        ["network.inputs", "network.width", "network.outputs", "task.num_classes", "data.shift"], "derived"
    )


def test_a_record_keeps_them_and_serves_without_data(tmp_path: Path) -> None:
    trained = Nitro(Whole(), run_dir=tmp_path).train()
    meta = checkpoint_info(newest(trained)).meta
    assert meta.derived is not None
    assert (meta.derived["network.width"], meta.derived["data.shift"]) == (8, 0.25)
    resolved = read_config(trained.run_path / "config.toml", cls=Whole)
    assert str(resolved.origin("network.width")).startswith("derived, recorded in ")
    serving = Nitro(Whole(), weights=f"{tmp_path}:latest:latest", data={}, run_dir=tmp_path / "other")
    pixels = np.random.default_rng(1).integers(0, 255, (5, 4), np.uint8)
    x = np.concatenate([pixels / 255 - 0.25] * 2, axis=-1)
    expected = x @ np.asarray(trained.params["kernel"], np.float64)
    np.testing.assert_allclose(serving.predict({"pixels": pixels}), expected, atol=1e-5)
    np.testing.assert_allclose(trained.predict({"pixels": pixels}), expected, atol=1e-5)


def test_a_resume_fills_in_anew_and_goes_on(tmp_path: Path) -> None:
    whole = Nitro(Whole(), max_epochs=2, run_dir=tmp_path / "whole").train()
    Nitro(Whole(), run_dir=tmp_path / "parts").train()
    resumed = Nitro(Whole(), max_epochs=2, run_dir=tmp_path / "parts", resume="auto").train()
    np.testing.assert_array_equal(resumed.params["kernel"], whole.params["kernel"])


def test_two_parts_that_disagree_are_refused_with_both_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data has num_classes = 3, and task has num_classes = 4"):
        Nitro(Whole(task=Classes(num_classes=4)), run_dir=tmp_path)


def test_parts_that_never_agree_with_themselves_are_refused(tmp_path: Path) -> None:
    class Restless(Classes):
        def fills(self, data: Any, batch: Any, declared: Declared) -> dict[str, Any]:
            return {"num_classes": 1 + (self.num_classes or 3)}

        def declares(self, data: Any) -> Declared:
            return Declared()

    with pytest.raises(ConfigError, match="again and again"):
        Nitro(Whole(task=Restless()), run_dir=tmp_path)


def test_prepare_draws_in_training_alone_and_from_the_key_of_the_step(tmp_path: Path) -> None:
    noisy = Whole(data=Rows(augment=True))
    first, second = (Nitro(noisy, run_dir=tmp_path / name).train() for name in "ab")
    plain = Nitro(Whole(), run_dir=tmp_path / "plain").train()
    np.testing.assert_array_equal(first.params["kernel"], second.params["kernel"])
    assert np.abs(np.asarray(first.params["kernel"]) - np.asarray(plain.params["kernel"])).max() > 1e-4
    pixels = np.zeros((3, 4), np.uint8)
    np.testing.assert_array_equal(first.predict({"pixels": pixels}), first.predict({"pixels": pixels}))


def test_prepare_changes_only_what_forward_takes(tmp_path: Path) -> None:
    class Odd(Whole):
        def prepare(self, inputs: Any, train: bool, key: Any) -> Any:
            return {**inputs, "colour": 1}

    with pytest.raises(HookError, match="`prepare` returned"):
        Nitro(Odd(), run_dir=tmp_path)


class Rated(Experiment):
    """A rate that is a traced input where there is one."""

    rate: Device[float | None] = None
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {"train": ArrayBatches({"x": np.ones((4, 1), np.float32)}, 4)}

    def build_model(self, rng: Any) -> Any:
        return (lambda params, state, x: x * params["w"]), {"w": jnp.ones(())}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs) if self.rate is None else jnp.mean(outputs) * self.rate


def test_a_device_field_that_is_none_is_no_input_and_is_set_by_a_new_handle_alone() -> None:
    assert Nitro(Rated()).train().history[-1]["train_loss"] == 1.0
    nitro = Nitro(Rated(rate=0.5))
    nitro.set_device(rate=0.25)
    assert nitro.train().history[-1]["train_loss"] == 0.25
    with pytest.raises(ConfigError, match="rate is not set"):
        Nitro(Rated()).set_device(rate=0.5)
    with pytest.raises(ConfigError, match="it is not set, so no program takes it"):
        Nitro(Rated(), schedules={"rate": {"kind": "linear", "init_value": 0.0, "end_value": 1.0}})
