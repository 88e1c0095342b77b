"""The loop of Flax's own documentation (nnx basics): `nnx.jit`, `nnx.Optimizer`, `nnx.MultiMetric`; and the same with
`nnx.cached_partial`, which its performance guide gives for small steps. Batches are gathered on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from .jax_models import adam, cross_entropy
from .jobs import BLOCKS, CLASSES, HEADS, LENGTH, VOCABULARY, WIDTH, Job
from .watch import Watch

__all__ = ["cached", "plain"]


class MLP(nnx.Module):
    """784-128-10."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(784, 128, rngs=rngs)
        self.out = nnx.Linear(128, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(nnx.relu(self.hidden(x)))

    def parts(self) -> dict[str, Any]:
        """Layers by the job's names."""
        return {"in": self.hidden, "out": self.out}


class CNN(nnx.Module):
    """Two convolutions and a dense layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.two = nnx.Conv(8, 16, (3, 3), rngs=rngs)
        self.out = nnx.Linear(7 * 7 * 16, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in (self.one, self.two):
            x = nnx.max_pool(nnx.relu(layer(x)), (2, 2), (2, 2))
        return self.out(x.reshape(x.shape[0], -1))

    def parts(self) -> dict[str, Any]:
        """Layers by the job's names."""
        return {"one": self.one, "two": self.two, "out": self.out}


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm and beside a skip."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.between = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, h: Any, mask: Any) -> Any:
        h = h + self.attention(self.before(h), mask=mask)
        return h + self.down(nnx.gelu(self.up(self.between(h)), approximate=True))

    def parts(self) -> dict[str, Any]:
        """Layers by the job's names."""
        a = self.attention
        inner = {"query": a.query, "key": a.key, "value": a.value, "mix": a.out}
        return inner | {"before": self.before, "between": self.between, "up": self.up, "down": self.down}


class Transformer(nnx.Module):
    """Two causal blocks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.token = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.place = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.last = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.out = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        h = self.token(x) + self.place(jnp.arange(LENGTH))
        mask = nnx.make_causal_mask(x)
        for block in self.blocks:
            h = block(h, mask)
        return self.out(self.last(h))

    def parts(self) -> dict[str, Any]:
        """Layers by the job's names."""
        inner = {f"block{i}.{name}": part for i, b in enumerate(self.blocks) for name, part in b.parts().items()}
        return inner | {"token": self.token, "place": self.place, "last": self.last, "out": self.out}


def _built(job: Job) -> Any:
    model = {"mlp": MLP, "cnn": CNN, "transformer": Transformer}[job.name](nnx.Rngs(0))
    parts = model.parts()
    for name, value in job.weights().items():
        layer, _, kind = name.rpartition(".")
        variable = getattr(parts[layer], "embedding" if kind == "table" else kind)
        variable[...] = jnp.asarray(value.reshape(variable.shape))
    return model


@nnx.jit
def train_step(model: Any, optimizer: Any, metrics: Any, x: Any, y: Any) -> None:
    """One step, as documented."""
    loss, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
    metrics.update(loss=loss)
    optimizer.update(model, grads)


def _train(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch, cache: bool) -> None:
    model = _built(job)
    optimizer = nnx.Optimizer(model, adam(), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    step: Callable[[Any, Any], Any] = lambda x, y: train_step(model, optimizer, metrics, x, y)  # noqa: E731
    if cache:
        step = nnx.cached_partial(train_step, model, optimizer, metrics)
    x, y = data["x"], data["y"]
    for epoch in range(epochs):
        watch.begin()
        order = np.random.default_rng(epoch).permutation(job.samples).reshape(job.steps, job.batch)
        for rows in order:
            step(x[rows], y[rows])
            if watch.wants_first:
                float(metrics.compute()["loss"])
                watch.first()
        loss = float(metrics.compute()["loss"])
        metrics.reset()
        watch.end(loss)


def plain(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """`nnx.jit`."""
    _train(job, data, epochs, watch, cache=False)


def cached(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """`nnx.cached_partial`."""
    _train(job, data, epochs, watch, cache=True)
