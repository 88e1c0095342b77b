"""Sums and averages of a run in half precision are kept in float32, whatever the parameters are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import EMA, ArrayBatches, Experiment, GraphConst, Nitro, NitroWarning
from nitro_cli.checkpoints import read_record
from nitro_cli.checkpoints.record import write_record


class Half(Experiment):
    """One weight, whose gradient is the mean of the batch."""

    dtype: GraphConst[str] = "bfloat16"

    max_epochs = 1
    learning_rate = 1.0
    logger = None
    check_divergence = True

    def build_data(self, dist: Any) -> Any:
        return {"train": self.batches(np.ones(4), 1), "val": self.batches(np.ones(4), 4)}

    @staticmethod
    def batches(values: Any, size: int) -> ArrayBatches:
        return ArrayBatches({"x": np.asarray(values, np.float32)[:, None]}, size)

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x.astype(self.dtype) * p["w"], s)), {"w": jnp.zeros((1,), self.dtype)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs)

    def optimizer(self, group: str) -> Any:
        return optax.sgd


@pytest.mark.parametrize("accum", [8, 16])
def test_gradients_are_accumulated_in_float32(accum: int, tmp_path: Path) -> None:
    values = [1.0] + [1 / 512] * (accum - 1)
    nitro = Nitro(Half(accum=accum), data={"train": Half.batches(values, 1)}, run_dir=tmp_path).train()
    # A bfloat16 holds 1 + 1/512 as 1. The mean itself is rounded to bfloat16 once, as the weight.
    assert nitro.params["w"].dtype == jnp.bfloat16
    assert float(nitro.params["w"][0]) == float(jnp.asarray(-np.sum(values) / accum, jnp.bfloat16))
    assert nitro.history[1]["train_loss"] == 0.0


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """A weight that moves from 0 to -1 at the first step and stays, averaged over 100 steps."""
    values = [1.0] + [0.0] * 99
    data = {"train": Half.batches(values, 1), "val": Half.batches(np.ones(4), 4)}
    return Nitro(
        Half(ema=EMA(beta=0.999, warmup=False)), data=data, run_dir=tmp_path_factory.mktemp("averaged")
    ).train()


def test_the_average_of_bfloat16_weights_moves_and_is_read_in_bfloat16(averaged: Nitro) -> None:
    assert averaged.ema["w"].dtype == jnp.float32
    # In bfloat16 it would be stuck at a multiple of a power of two.
    assert float(averaged.ema["w"][0]) == pytest.approx(0.999**100 - 1, rel=1e-4)
    rounded = np.asarray(jnp.asarray(averaged.ema["w"], jnp.bfloat16))
    assert averaged.eval_params()["w"].dtype == jnp.bfloat16
    found = averaged.predict({"x": np.ones((2, 1), np.float32)})
    np.testing.assert_array_equal(found[:, 0], rounded.repeat(2))


def test_an_average_is_loaded_as_weights_of_the_models_precision(averaged: Nitro) -> None:
    rounded = np.asarray(jnp.asarray(averaged.ema["w"], jnp.bfloat16))
    for source in (averaged, (averaged.run_id, "latest")):
        loaded = Nitro(Half(), weights=source, load_ema=True, data={}, run_dir=averaged.run_dir)
        np.testing.assert_array_equal(np.asarray(loaded.params["w"]), rounded)


def test_a_record_that_keeps_averages_in_half_precision_continues_in_float32(averaged: Nitro, tmp_path: Path) -> None:
    assert averaged.run_path is not None
    (path,) = (averaged.run_path / "checkpoints").iterdir()
    record = read_record(path)
    assert record.arrays["ema/w"].dtype == np.float32
    old = {**record.arrays, "ema/w": record.arrays["ema/w"].astype(jnp.bfloat16)}
    write_record(tmp_path / "old", record.meta, old)
    e = Half(ema=EMA(beta=0.999, warmup=False), max_epochs=2)
    data = {"train": Half.batches([0.0] * 100, 1)}
    with pytest.warns(NitroWarning, match=r"its EMA in bfloat16: from here on they are kept in float32"):
        nitro = Nitro(e, data=data, resume=tmp_path / "old", run_dir=tmp_path / "runs")
    assert nitro.ema["w"].dtype == jnp.float32
    assert float(nitro.ema["w"][0]) == float(old["ema/w"][0])
    assert jax.tree.leaves(nitro.params)[0].dtype == jnp.bfloat16
