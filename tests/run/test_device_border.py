"""Numbers that the device's 32 bits cannot hold are refused wherever they enter, with place, field and value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Device, Experiment, Mean, Nitro, NoPrefetch
from nitro_cli.errors import ConfigError, DataError, HookError

BIG = 3_000_000_000


def at(row: int, value: Any, like: Any = np.int64, rows: int = 8) -> np.ndarray:
    """Ones of a dtype, with `value` in one row."""
    array = np.ones((rows, 1), like)
    array[row] = value
    return array


class Scaled(Experiment):
    """x times w; `kept` is read on the host alone."""

    max_epochs = 1
    checkpointer = None
    logger = None
    factor: Device[float] = 1.0
    count: Device[int] = 1

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches({"x": np.ones((8, 1), np.float32)}, 4)}

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(jnp.abs(outputs))

    def optimizer(self, group: str) -> Any:
        return optax.sgd


class Keeping(Scaled):
    def metrics(self, outputs: Any, *, kept: np.ndarray) -> Any:
        return {"kept": Mean(int(kept.sum()), 1)}


class Drawing(Scaled):
    def visualize(self, outputs: Any, *, x: Any) -> Any:
        return x

    def save_figure(self, figure: Any, stem: str) -> str:
        return stem


def multiplied(batch: dict[str, np.ndarray], rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    return {"x": batch["x"] * BIG}


TRAIN = [
    pytest.param(lambda: ArrayBatches({"x": at(6, BIG)}, 4), "batch 1 of epoch 1, row 6", "int32", id="resident"),
    pytest.param(lambda: ArrayBatches({"x": at(6, BIG)}, 4, resident=False), "batch 1, row 2", "int32", id="streamed"),
    pytest.param(lambda: NoPrefetch(ArrayBatches({"x": at(6, BIG)}, 4)), "batch 1, row 2", "int32", id="inline"),
    pytest.param(lambda: [{"x": at(0, 1)}, {"x": at(3, -BIG)}], "batch 1, row 3", "int32", id="negative"),
    pytest.param(lambda: [{"x": at(0, 1, np.uint64)}, {"x": at(3, 2**32, np.uint64)}], "row 3", "uint32", id="uint64"),
    pytest.param(lambda: [{"x": at(0, 1.0, float)}, {"x": at(3, 1e39, float)}], "row 3", "float32", id="float64"),
    pytest.param(lambda: [{"x": at(0, 1, complex)}, {"x": at(3, 1e39j, complex)}], "row 3", "complex64", id="complex"),
    pytest.param(
        lambda: ArrayBatches({"x": np.ones((8, 1), np.int64)}, 4, transform=multiplied),
        "batch 0, row 0",
        "int32",
        id="a transform",
    ),
]


@pytest.mark.parametrize(("make", "place", "narrow"), TRAIN)
def test_training_data_that_does_not_fit_is_refused(make: Any, place: str, narrow: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"does not fit the device's {narrow}") as caught:
        Nitro(Scaled(), data={"train": make()}, run_dir=tmp_path).train()
    for word in ("split `train`", place, "field `x`", "JAX_ENABLE_X64=1"):
        assert word in str(caught.value)
    # A run that finished a step stays, as one that failed.
    finished = "batch 0" not in place and "of epoch" not in place
    assert any(path.is_dir() for path in tmp_path.iterdir()) is finished


def test_the_value_that_does_not_fit_is_named_and_found_before_a_model_is_built() -> None:
    class Unbuilt(Scaled):
        def build_model(self, rng: Any) -> Any:
            raise AssertionError

    with pytest.raises(DataError, match="`x` holds 3000000000, which"):
        Nitro(Unbuilt(), data={"train": ArrayBatches({"x": at(6, BIG)}, 4)})


@pytest.mark.parametrize(
    "values",
    [
        np.array([2**31 - 1, -(2**31)], np.int64),
        np.array([2**32 - 1, 0], np.uint64),
        np.array([np.inf, -np.inf, np.nan, 3.4e38, 1e-300], np.float64),
    ],
)
def test_what_fits_is_taken(values: np.ndarray) -> None:
    rows = np.resize(values, (8, 1))
    nitro = Nitro(Scaled(), data={"val": ArrayBatches({"x": rows}, 4)}, eval_loss=False)
    expected = rows[:4].astype({"i": np.int32, "u": np.uint32, "f": np.float32}[rows.dtype.kind])
    np.testing.assert_array_equal(nitro.predict({"x": rows[:4]}), (expected * np.float32(1)).astype(np.float32))


@pytest.mark.parametrize("act", ["evaluate", "validate"])
def test_evaluation_refuses_likewise(act: str, tmp_path: Path) -> None:
    val = [{"x": np.ones((4, 1), np.int64)}, {"x": at(1, BIG, rows=4)}]
    nitro = Nitro(Scaled(), data={"val": val}, run_dir=tmp_path)
    with pytest.raises(DataError, match="3000000000") as caught:
        nitro.validate() if act == "validate" else nitro.evaluate("val")
    assert "split `val`, batch 1, row 1, field `x`" in str(caught.value)


def test_a_field_that_only_the_host_reads_keeps_its_64_bits(tmp_path: Path) -> None:
    val = ArrayBatches({"x": np.ones((4, 1), np.float32), "kept": np.full(4, BIG)}, 4)
    assert Nitro(Keeping(monitor=("kept", "max")), data={"val": val}).evaluate("val") == {"kept": 4.0 * BIG}


def test_pictures_of_predictions_refuse_likewise(tmp_path: Path) -> None:
    val = [{"x": np.ones((4, 1), np.int64)}, {"x": at(1, BIG, rows=4)}]
    nitro = Nitro(Drawing(), data={"val": val}, run_dir=tmp_path)
    assert len(nitro.render(batches=2, out_dir=tmp_path)) == 8
    with pytest.raises(DataError, match="split `val`, batch 1, row 1"):
        nitro.render(batches=2, predictions=True, out_dir=tmp_path)


@pytest.fixture(scope="module")
def scaled() -> Nitro:
    return Nitro(Scaled())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.ones((1, 1), np.complex64), "complex64, the model was trained with float32"),
        (np.ones((1, 1), np.uint64), "uint64, the model was trained with float32"),
        (np.ones((1, 1), np.int64), "int64, the model was trained with float32"),
        (jnp.ones((1, 1), jnp.int32), "int32, the model was trained with float32"),
        (np.ones((1, 1), bool), "bool, the model was trained with float32"),
        ([[1j]], "complex128, the model was trained with float32"),
        (np.full((1, 1), 1e39), r"holds 1e\+39, which does not fit the device's float32"),
        ([[1e39]], r"holds 1e\+39, which does not fit"),
        ([[10**400]], "dtype object"),
        (np.array([["a"]]), "dtype <U1"),
        (np.ones((1, 1), np.longdouble), "which no device can hold"),
    ],
)
def test_predict_takes_numbers_of_the_kind_of_training_alone(value: Any, told: str, scaled: Nitro) -> None:
    with pytest.raises(DataError, match=told) as caught:
        scaled.predict({"x": value})
    assert "predict" in str(caught.value)
    assert "field `x`" in str(caught.value)


@pytest.mark.parametrize("value", [[[2], [3]], [[2.0], [3.0]], np.array([[2.0], [3.0]]), np.float16([[2], [3]])])
def test_predict_takes_lists_and_other_widths_of_the_kind_of_training(value: Any, scaled: Nitro) -> None:
    np.testing.assert_array_equal(scaled.predict({"x": value}), [[2.0], [3.0]])


def test_predict_over_a_loader_names_the_batch(scaled: Nitro) -> None:
    with pytest.raises(DataError, match="predict, batch 1, row 0, field `x`"):
        list(scaled.predict([{"x": np.ones((1, 1))}, {"x": np.full((1, 1), 1e39)}]))
    with pytest.raises(DataError, match="a batch is a tuple, not a mapping"):
        list(scaled.predict([(np.ones((1, 1)),)]))


def test_a_handle_for_serving_knows_the_kinds_from_the_record(tmp_path: Path) -> None:
    from nitro_cli import Checkpointer

    Nitro(Scaled(checkpointer=Checkpointer(keep=("last(1)",))), run_dir=tmp_path).train()
    serving = Nitro(Scaled(), data={}, weights=("latest", "latest"), run_dir=tmp_path)
    with pytest.raises(DataError, match="complex64, the model was trained with float32"):
        serving.predict({"x": np.ones((1, 1), np.complex64)})


def test_device_fields_that_do_not_fit_are_refused(scaled: Nitro) -> None:
    for refused in (lambda: Scaled(count=BIG), lambda: scaled.set_device(count=BIG), lambda: Scaled(factor=1e39)):
        with pytest.raises(ConfigError, match=r"does not fit int32|overflows float32"):
            refused()


@pytest.mark.parametrize(
    ("schedules", "told"),
    [
        ({"factor": lambda step: 1e39}, "'factor' is .*e.38 at step 1"),
        ({"count": lambda step: 2**31 + step}, "'count' is 2147483648 at step 1"),
        ({"learning_rate": lambda step: 1e39}, "'learning_rate' is"),
    ],
)
def test_scheduled_values_that_do_not_fit_are_refused(schedules: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        Nitro(Scaled(), schedules=schedules, run_dir=tmp_path).train()


@pytest.mark.parametrize(
    ("params", "state", "told"),
    [
        ({"w": np.array([1e39])}, {}, r"1e\+39.* float32"),
        ({"w": np.ones(1, np.float32)}, {"ids": np.array([BIG])}, "3000000000.* int32"),
    ],
)
def test_arrays_of_a_model_that_do_not_fit_are_refused(params: Any, state: Any, told: str) -> None:
    class Wide(Scaled):
        def build_model(self, rng: Any) -> Any:
            return (lambda p, s, x: (x * p["w"], s)), params, state

    with pytest.raises((ConfigError, HookError), match=told) as caught:
        Nitro(Wide())
    assert "build_model" in str(caught.value)


def test_with_64_bits_nothing_is_narrowed(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        data = {"train": ArrayBatches({"x": np.full((4, 1), BIG)}, 4)}
        nitro = Nitro(Scaled(count=BIG), data=data, run_dir=tmp_path)
        assert nitro.device_value("count") == BIG
        np.testing.assert_array_equal(nitro.predict({"x": np.full((1, 1), BIG)}), [[3e9]])
        nitro.train()
