"""The same net in four libraries trains through `Nitro`, its dropout and batch statistics without help by the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Mean, Nitro, set_progress_reporter
from nitro_cli.experiment import Experiment

ROWS = 32


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    previous = set_progress_reporter(None)
    yield
    set_progress_reporter(previous)


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32) * 2 + 3
    return {"x": x, "y": (x.sum(-1) > 12).astype(np.int32)}


class Net(Experiment):
    """Two classes of points by a net of some library; the same line of `forward` for all of them."""

    library: str = "function"
    builds: Any = None
    max_epochs = 2
    learning_rate = 0.05
    monitor = ("acc", "max")
    checkpointer = None
    logger = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(data(), 8, shuffle=True), "val": ArrayBatches(data(), 8)}

    def build_model(self, rng: Any) -> Any:
        return self.builds[self.library](None, rng)

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("library", ["linen", "nnx", "equinox", "function"])
def test_it_trains_with_its_own_dropout_and_running_statistics(library: str, builds: Any, tmp_path: Path) -> None:
    e = Net(library=library, builds=builds)
    nitro = Nitro(e, run_dir=tmp_path)
    assert library in str(nitro.report)
    params, state = leaves(nitro.params), leaves(nitro.state)
    nitro.train()
    assert all(np.isfinite(leaf).all() for leaf in leaves(nitro.params))
    trained = [not np.array_equal(a, b) for a, b in zip(params, leaves(nitro.params), strict=True)]
    assert sum(trained) >= len(trained) - 1  # batch normalisation cancels the bias before it
    assert any(not np.array_equal(a, b) for a, b in zip(state, leaves(nitro.state), strict=True))
    assert nitro.history[2]["train_loss"] < nitro.history[1]["train_loss"]
    x = {"x": data()["x"][:8]}
    np.testing.assert_array_equal(nitro.predict(x), nitro.predict(x))  # no dropout, no batch statistics
    np.testing.assert_allclose(nitro.predict({"x": x["x"][:2]}), nitro.predict(x)[:2], rtol=1e-6)
    means = [leaf for leaf in leaves(nitro.state) if leaf.shape == (8,)]
    assert any(np.abs(mean).max() > 0.3 for mean in means)


def test_one_seed_is_one_sequence_of_masks_and_another_seed_another(builds: Any, tmp_path: Path) -> None:
    class Masked(Net):
        """The loss shows the mask: the mean of what dropout left of ones."""

        def build_model(self, rng: Any) -> Any:
            def layer(params: Any, state: Any, x: Any, *, train: bool, key: Any) -> Any:
                kept = jax.random.bernoulli(key, 0.5, x.shape) if train else jnp.ones_like(x)
                return jnp.where(kept, params["w"], 0.0), state

            return layer, {"w": jnp.ones(())}, {}

        def loss(self, outputs: Any, *, y: Any) -> Any:
            return outputs.mean()

        learning_rate = 1e-12
        max_epochs = 1

    def masks(**fields: Any) -> float:
        return Nitro(Masked(**fields), run_dir=tmp_path).train().history[1]["train_loss"]

    assert masks() == masks()
    assert masks() != masks(seed=1)
