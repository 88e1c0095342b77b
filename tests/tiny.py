"""The smallest experiments that have everything, for tests of the whole: made data, plain functions, quick to train."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nitro_cli import ArrayBatches, Device, Experiment, GraphConst, Mean

FEATURES, CLASSES = 6, 3


def points(n: int, seed: int) -> dict[str, np.ndarray]:
    """`n` points around three centres, float32 (n, 6), with their class, int32 (n,)."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, n).astype(np.int32)
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 2
    return {"x": (centres[label] + rng.normal(size=(n, FEATURES))).astype(np.float32), "y": label}


def network(params: Any, state: Any, x: jax.Array, *, train: bool, key: jax.Array | None) -> tuple[jax.Array, Any]:
    """A hidden layer with dropout and running statistics, and a head."""
    h = x @ params["body"]["kernel"] + params["body"]["bias"]
    mean = jnp.mean(h, axis=0) if train else state["mean"]
    new = {"mean": 0.9 * state["mean"] + 0.1 * mean} if train else state
    h = jax.nn.relu(h - mean)
    if train and key is not None:
        h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0.0)
    return h @ params["head"]["kernel"] + params["head"]["bias"], new


class Tiny(Experiment):
    """Three classes of points; dropout, layer state, metrics of its own."""

    width: GraphConst[int] = 8
    smoothing: Device[float] = 0.0
    samples: int = 96
    batch_size: int = 8
    shuffle: bool = True

    monitor = ("acc", "max")
    max_epochs = 2
    learning_rate = 1e-2

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {
            "train": ArrayBatches(points(self.samples, 1), self.batch_size, shuffle=self.shuffle),
            "val": ArrayBatches(points(self.samples // 2 + 3, 2), self.batch_size),
            "test": ArrayBatches(points(21, 3), self.batch_size),
        }

    def build_model(self, rng: jax.Array) -> Any:
        a, b = jax.random.split(rng)
        params = {
            "body": {"kernel": jax.random.normal(a, (FEATURES, self.width)) * 0.3, "bias": jnp.zeros(self.width)},
            "head": {"kernel": jax.random.normal(b, (self.width, CLASSES)) * 0.3, "bias": jnp.zeros(CLASSES)},
        }
        return network, params, {"mean": jnp.zeros(self.width)}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        target = jax.nn.one_hot(y, CLASSES) * (1 - self.smoothing) + self.smoothing / CLASSES
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(outputs), axis=-1))

    def metrics(self, outputs: np.ndarray, *, y: np.ndarray) -> dict[str, Any]:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


class Bare(Experiment):
    """The four required hooks and nothing else: a linear layer, no randomness, no state."""

    samples: int = 64
    batch_size: int = 8

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {
            "train": ArrayBatches(points(self.samples, 1), self.batch_size),
            "val": ArrayBatches(points(20, 2), self.batch_size),
        }

    def build_model(self, rng: jax.Array) -> Any:
        params = {"kernel": jax.random.normal(rng, (FEATURES, CLASSES)) * 0.3, "bias": jnp.zeros(CLASSES)}
        return linear, params, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1))


def linear(params: Any, state: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    """`x @ kernel + bias`."""
    return x @ params["kernel"] + params["bias"], state


class Quick(Tiny):
    """`Tiny` under stochastic gradient descent with momentum, which compiles quickly and has a state."""

    def optimizer(self, group: str) -> Any:
        return partial(optax.sgd, momentum=0.9)


def stop_after(nitro: Any, steps: int) -> None:
    """Make the handle's next `train()` stop by request once `steps` steps were dispatched."""
    nitro.stop.last_step = steps


class Light(Bare):
    """The linear layer under plain gradient descent, with an accuracy: two batches, quick to trace and to compile."""

    samples = 16
    monitor = ("acc", "max")

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {
            "train": ArrayBatches(points(self.samples, 1), self.batch_size),
            "val": ArrayBatches(points(11, 2), self.batch_size),
            "test": ArrayBatches(points(21, 3), self.batch_size),
        }

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def metrics(self, outputs: np.ndarray, *, y: np.ndarray) -> dict[str, Any]:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}
