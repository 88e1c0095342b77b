"""Schedules on handles that do not train: whatever horizon they were written for, nothing is refused for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Device, Experiment, ExportSpec, Mean, Nitro
from nitro_cli.errors import ScheduleError
from nitro_cli.optim import (
    Plateau,
    cosine,
    exponential,
    inverse_sqrt,
    linear,
    one_cycle,
    piecewise,
    polynomial,
    warmup_cosine,
)

LONG = 100  # steps of warmup; the horizon of a handle without a train split must not be counted as 1


class Line(Experiment):
    """`y = scale * w x`, on 432 rows a batch each."""

    scale: Device[float] = 1.0
    logger = None
    learning_rate = 0.01

    def build_data(self, dist: Any) -> Any:
        x = np.linspace(0, 1, 432, dtype=np.float32)[:, None]
        return {"train": ArrayBatches({"x": x, "y": 2 * x}, 1), "test": ArrayBatches({"x": x[:8], "y": 2 * x[:8]}, 8)}

    def build_model(self, rng: Any) -> Any:
        return (lambda params, state, x: (x * params["w"], state)), {"w": jnp.ones(1)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        y, state = model(params, state, x)
        return {"y": y * self.scale}, state

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return jnp.mean((outputs["y"] - y) ** 2)

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def schedules(self) -> Any:
        return {"learning_rate": warmup_cosine(self.learning_rate, LONG)}

    def export_inputs(self) -> Any:
        return [ExportSpec("x", "float32", (1, 1))]

    def export_outputs(self) -> Any:
        return [ExportSpec("y")]


X = np.array([[0.5], [1.0]], np.float32)


def after_a_horizon(total: int) -> Any:
    """A factory that no horizon of 100 steps or fewer suits."""
    if total <= LONG:
        raise ValueError("too short")
    return lambda step: 1.0 - step / total


SCHEDULES: dict[str, tuple[Any, float]] = {
    # entry, and its value at the first step
    "warmup_cosine": (warmup_cosine(1.0, LONG, init_value=0.25), 0.25),
    "warmup_cosine of a table": ({"kind": "warmup_cosine", "peak_value": 1.0, "warmup_steps": LONG}, 0.0),
    "a plateau around one": (Plateau(warmup_cosine(1.0, LONG, init_value=0.25), metric="loss", mode="min"), 0.25),
    "one_cycle": (one_cycle(1.0), 1 / 25),
    "cosine": (cosine(1.0), 1.0),
    "linear": (linear(1.0, 0.0, transition_begin=LONG), 1.0),
    "polynomial": (polynomial(1.0, 0.0, 2.0, transition_begin=LONG), 1.0),
    "exponential": (exponential(1.0, 0.5, transition_begin=LONG), 1.0),
    "inverse_sqrt": (inverse_sqrt(1.0, LONG, init_value=0.5), 0.5),
    "piecewise": (piecewise(1.0, {LONG: 0.1}), 1.0),
    "optax": (optax.warmup_cosine_decay_schedule(0.5, 1.0, LONG, 2 * LONG), 0.5),
    "a number": (0.75, 0.75),
    "a factory that refuses short horizons": (after_a_horizon, 1 - 1 / 1024),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    nitro = Nitro(Line(), run_dir=tmp_path_factory.mktemp("line")).train()
    assert nitro.step == 432
    return nitro


@pytest.mark.parametrize("source", ["weights", "average", "handle", "resume"])
def test_what_trained_for_432_steps_predicts_and_exports_without_data(
    source: str, trained: Nitro, tmp_path: Path
) -> None:
    words: dict[str, Any] = {
        "weights": {"weights": ("latest", "latest")},
        "average": {"weights": "latest:average(last(1))"},
        "handle": {"weights": trained},
        "resume": {"resume": ("latest", "latest")},
    }[source]
    serving = Nitro(Line(), data={}, run_dir=trained.run_dir, **words)
    np.testing.assert_array_equal(serving.predict({"x": X})["y"], trained.predict({"x": X})["y"])
    assert serving.export(dir=tmp_path).exists()
    scored = Nitro(Line(), data={"test": Line().build_data(None)["test"]}, run_dir=trained.run_dir, **words)
    assert scored.evaluate("test") == trained.evaluate("test")


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_data_and_without_a_run_any_schedule_has_the_value_of_its_first_step(name: str) -> None:
    entry, first = SCHEDULES[name]
    nitro = Nitro(Line(), data={}, schedules={"scale": entry, "learning_rate": entry})
    assert nitro.device_value("scale") == pytest.approx(first, rel=1e-6)
    np.testing.assert_allclose(nitro.predict({"x": X})["y"], X * first, rtol=1e-6)


class Annealed(Line):
    """Three epochs of four steps under a scale that falls; the second epoch is the best."""

    max_epochs = 3
    monitor = ("score", "max")

    def build_data(self, dist: Any) -> Any:
        x = np.linspace(0, 1, 16, dtype=np.float32)[:, None]
        return {"train": ArrayBatches({"x": x, "y": 2 * x}, 4), "val": ArrayBatches({"x": x, "y": 2 * x}, 8)}

    def schedules(self) -> Any:
        return {"scale": linear(1.0, 0.0)}

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"scale": Mean(float(np.abs(outputs["y"]).sum()), len(y))}

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        Annealed.calls += 1
        return {"score": -abs(Annealed.calls - 2.0), **acc}


Annealed.calls = 0


def test_loaded_weights_are_evaluated_under_the_schedules_of_their_own_step(tmp_path: Path) -> None:
    # The value at step t of 12 is 1 - (t - 1) / 12; the epochs end at the steps 4, 8 and 12.
    Annealed.calls = 0
    trained = Nitro(Annealed(), run_dir=tmp_path, restore_best=True).train()
    told = {row["epoch"]: row["scale"] for row in trained.history}
    assert trained.device_value("scale") == pytest.approx(1 - 7 / 12, rel=1e-6)
    assert trained.validate()["scale"] == pytest.approx(told[2], rel=1e-6)
    for which, epoch in (("best", 2), ("latest", 3)):
        warm = Nitro(Annealed(), run_dir=tmp_path, weights=("latest", which))
        assert (warm.step, warm.device_value("scale")) == (0, pytest.approx(1 - (4 * epoch - 1) / 12, rel=1e-6))
        assert warm.validate()["scale"] == pytest.approx(told[epoch], rel=1e-6)
        serving = Nitro(Annealed(), run_dir=tmp_path, weights=("latest", which), data={})
        np.testing.assert_array_equal(serving.predict({"x": X})["y"], warm.predict({"x": X})["y"])
    second = Nitro(Annealed(), weights=trained)
    assert second.validate()["scale"] == pytest.approx(told[2], rel=1e-6)
    warm.train()
    assert warm.device_value("scale") == pytest.approx(1 - 11 / 12, rel=1e-5)
    assert next(row["scale"] for row in warm.history) != pytest.approx(told[3], rel=1e-3)


def test_a_record_of_a_shorter_run_than_the_schedule_serves_too(trained: Nitro) -> None:
    longer = {"learning_rate": warmup_cosine(0.01, 1000)}
    serving = Nitro(Line(), data={}, run_dir=trained.run_dir, weights=("latest", "latest"), schedules=longer)
    np.testing.assert_array_equal(serving.predict({"x": X})["y"], trained.predict({"x": X})["y"])


def test_a_handle_that_trains_still_refuses_a_warmup_longer_than_the_run() -> None:
    with pytest.raises(ScheduleError, match="decay_steps is 432 and warmup_steps is 1000"):
        Nitro(Line(), schedules={"learning_rate": warmup_cosine(0.01, 1000)})


def test_a_resume_that_only_answers_has_the_scale_that_the_plateau_had(tmp_path: Path) -> None:
    class Stuck(Line):
        max_epochs = 3

        def build_data(self, dist: Any) -> Any:
            test = super().build_data(dist)["test"]
            return {"train": test, "val": test}

        def finalize_metrics(self, acc: Any, split: str) -> Any:
            return {"still": 1.0}

    halved = {"scale": Plateau(1.0, metric="still", mode="max", patience=0, factor=0.5)}
    nitro = Nitro(Stuck(monitor=("still", "max")), run_dir=tmp_path, schedules=halved).train()
    assert nitro.device_value("scale") == 0.25
    again = Nitro(Stuck(monitor=("still", "max")), run_dir=tmp_path, schedules=halved, resume="auto", data={})
    assert again.device_value("scale") == 0.25
