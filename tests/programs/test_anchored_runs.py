"""L2-SP through whole runs: what the decay pulls toward, from scratch, fine-tuning and after a resume."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Checkpointer, Device, Nitro
from nitro_cli.errors import ConfigError, IncompatibleError
from tests.tiny import Bare, points

RATE, DECAY = 0.1, 0.5


class Pulled(Bare):
    """Gradient descent with a decay of every leaf toward w0; without a data weight the decay is all there is."""

    data_weight: Device[float] = 1.0
    start: Device[float] = 0.0
    samples: int = 24
    learning_rate = RATE
    weight_decay = DECAY
    checkpointer = Checkpointer(keep=("last(9)",))
    logger = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(self.samples, 1), self.batch_size)}

    def build_model(self, rng: jax.Array) -> Any:
        model, params, state = super().build_model(rng)
        return model, jax.tree.map(lambda w: w + self.start, params), state

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        return self.data_weight * super().loss(outputs, y=y)

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def no_decay(self, path: Any, leaf: Any) -> bool:
        return False

    def decay_anchor(self, group: str) -> Any:
        return "w0"


def host(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, np.float64) for name, leaf in tree.items()}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """Another run, whose weights are fine-tuned."""
    return Nitro(Pulled(weight_decay=0.0, start=0.3), run_dir=tmp_path_factory.mktemp("pretrained")).train()


@pytest.fixture
def weights(pretrained: Nitro) -> str:
    (record,) = pretrained.run_path.rglob("record.json")
    return str(record.parent)


def test_the_decay_is_the_rate_times_the_coefficient_times_the_distance_to_w0(weights: str, tmp_path: Path) -> None:
    nitro = Nitro(Pulled(data_weight=0.0), weights=weights, run_dir=tmp_path)
    w0 = host(Nitro(Pulled(), run_dir=tmp_path).params)
    wanted = host(nitro.params)
    nitro.train()
    assert nitro.step == 3
    for _ in range(3):
        wanted = {name: w - RATE * DECAY * (w - w0[name]) for name, w in wanted.items()}
    for name, value in wanted.items():
        np.testing.assert_allclose(nitro.params[name], value, rtol=1e-6, atol=1e-7)


def test_at_the_weights_it_is_anchored_to_nothing_pulls(weights: str, pretrained: Nitro, tmp_path: Path) -> None:
    nitro = Nitro(Pulled(data_weight=0.0), weights=weights, w0="weights", run_dir=tmp_path).train()
    assert bits(nitro.params) == bits(pretrained.params)


def test_fine_tuning_is_the_gradient_and_the_pull_back_to_the_weights(
    weights: str, pretrained: Nitro, tmp_path: Path
) -> None:
    nitro = Nitro(Pulled(), weights=weights, w0="weights", run_dir=tmp_path).train()
    source = host(pretrained.params)
    data, w = points(24, 1), dict(source)
    for step in range(3):
        rows = slice(8 * step, 8 * step + 8)

        def loss(layer: Any, rows: slice = rows) -> Any:
            logits = data["x"][rows] @ layer["kernel"] + layer["bias"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, data["y"][rows]).mean()

        g = host(jax.grad(loss)({name: jnp.asarray(value, jnp.float32) for name, value in w.items()}))
        w = {name: w[name] - RATE * g[name] - RATE * DECAY * (w[name] - source[name]) for name in w}
    for name, value in w.items():
        np.testing.assert_allclose(nitro.params[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fine_tuned", [False, True])
def test_a_resumed_anchored_run_is_the_uninterrupted_one_bit_for_bit(
    fine_tuned: bool, weights: str, tmp_path: Path
) -> None:
    start: dict[str, Any] = {"weights": weights, "w0": "weights"} if fine_tuned else {}
    whole = Nitro(Pulled(), max_epochs=3, run_dir=tmp_path / "whole", **start).train()
    Nitro(Pulled(), max_epochs=1, run_dir=tmp_path / "parts", **start).train()
    for epochs in (2, 3):
        resumed = Nitro(Pulled(), max_epochs=epochs, run_dir=tmp_path / "parts", resume="latest:latest").train()
    assert (resumed.epoch, resumed.step) == (3, 9)
    assert bits((resumed.params, resumed.train_state.opt)) == bits((whole.params, whole.train_state.opt))
    assert resumed.plan.optim.anchor_checksums == whole.plan.optim.anchor_checksums


def test_another_initialisation_is_refused(tmp_path: Path) -> None:
    Nitro(Pulled(), run_dir=tmp_path).train()
    with pytest.raises(IncompatibleError, match="decay anchor of group default is not the one"):
        Nitro(Pulled(start=0.1), max_epochs=2, run_dir=tmp_path, resume="latest:latest")
    w0 = {"kernel": jnp.zeros((6, 3)), "bias": jnp.zeros(3)}
    with pytest.raises(IncompatibleError, match="decay anchor"):
        Nitro(Pulled(), max_epochs=2, run_dir=tmp_path, resume="latest:latest", w0=w0)


def test_where_the_weights_it_is_anchored_to_are_gone_a_tree_does(
    weights: str, pretrained: Nitro, tmp_path: Path
) -> None:
    copied = shutil.copytree(weights, tmp_path / "moved" / Path(weights).name)
    Nitro(Pulled(), weights=str(copied), w0="weights", run_dir=tmp_path / "run").train()
    shutil.rmtree(copied)
    with pytest.raises(IncompatibleError, match="cannot be read any more"):
        Nitro(Pulled(), max_epochs=2, run_dir=tmp_path / "run", resume="latest:latest")
    w0 = jax.tree.map(np.asarray, pretrained.params)
    again = Nitro(Pulled(), max_epochs=2, run_dir=tmp_path / "run", resume="latest:latest", w0=w0)
    assert again.step == 3


def test_anchoring_to_weights_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='w0 = "weights" without weights'):
        Nitro(Pulled(), w0="weights", run_dir=tmp_path)
    with pytest.raises(ConfigError, match="did you mean: weights"):
        Nitro(Pulled(), w0="weigths", run_dir=tmp_path)


def test_another_anchor_value_or_decay_compiles_nothing_new(weights: str, tmp_path: Path) -> None:
    first = Nitro(Pulled(), run_dir=tmp_path).train()
    for start in (0.1, 0.2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nitro = Nitro(Pulled(start=start, weight_decay=start), run_dir=tmp_path).train()
        assert nitro.programs["train"].key == first.programs["train"].key
        assert nitro.programs["train"].source == "memory"
