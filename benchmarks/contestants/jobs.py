"""The three jobs of the comparison: made data that can be learned, and the network every contestant trains on it.

No library but numpy is imported here, so that a contestant pays for its own imports only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["EPSILON", "JOBS", "LEARNING_RATE", "Job", "Leaf", "nested"]

LEARNING_RATE = 1e-3
EPSILON = 1e-8
"""Adam's, for everyone: the libraries' defaults differ."""

CLASSES = 10
VOCABULARY = 64
LENGTH = 64
WIDTH = 64
HEADS = 4
BLOCKS = 2


@dataclass(frozen=True)
class Leaf:
    """One weight: its shape, and either the standard deviation it is drawn with or the value it is filled with."""

    shape: tuple[int, ...]
    std: float = 0.0
    fill: float = 0.0


@dataclass(frozen=True)
class Job:
    """A network, its data and its batch.

    Attributes:
        name: `mlp`, `cnn` or `transformer`.
        batch: samples per step.
        steps: steps per epoch.
        leaves: the weights by name, laid out as in the JAX libraries (a kernel's inputs first, channels last).
    """

    name: str
    batch: int
    steps: int
    leaves: dict[str, Leaf]

    @property
    def samples(self) -> int:
        """How many samples an epoch has; no batch is short."""
        return self.batch * self.steps

    def of_steps(self, steps: int) -> Job:
        """The same job with another length of the epoch."""
        return replace(self, steps=steps)

    def data(self) -> dict[str, np.ndarray]:
        """`x` and `y`: images float32 and labels int32 (n,), or tokens int32 (n, 64) and the tokens after them."""
        rng = np.random.default_rng([0, 1])
        if self.name == "transformer":
            return _walks(rng, self.samples)
        label = rng.integers(0, CLASSES, self.samples).astype(np.int32)
        centre = rng.random((CLASSES, 784), dtype=np.float32)
        image = 0.5 * centre[label] + 0.5 * rng.random((self.samples, 784), dtype=np.float32)
        return {"x": image.reshape(-1, 28, 28, 1) if self.name == "cnn" else image, "y": label}

    def weights(self) -> dict[str, np.ndarray]:
        """First values, float32, for the contestants that do not draw their own with JAX."""
        rng = np.random.default_rng([0, 2])
        return {
            name: (leaf.fill + leaf.std * rng.standard_normal(leaf.shape)).astype(np.float32)
            for name, leaf in self.leaves.items()
        }


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = tree
        for word in path:
            place = place.setdefault(word, {})
        place[last] = value
    return tree


def _walks(rng: np.random.Generator, samples: int) -> dict[str, np.ndarray]:
    """Walks over the tokens that follow a fixed order four times out of five and jump otherwise."""
    after = rng.permutation(VOCABULARY)
    walk = rng.integers(0, VOCABULARY, (samples, LENGTH + 1))
    follows = rng.random((samples, LENGTH)) < 0.8
    for i in range(LENGTH):
        walk[:, i + 1] = np.where(follows[:, i], after[walk[:, i]], walk[:, i + 1])
    walk = walk.astype(np.int32)
    return {"x": np.ascontiguousarray(walk[:, :-1]), "y": np.ascontiguousarray(walk[:, 1:])}


def _dense(name: str, inputs: int, outputs: int) -> dict[str, Leaf]:
    return {f"{name}.kernel": Leaf((inputs, outputs), inputs**-0.5), f"{name}.bias": Leaf((outputs,))}


def _norm(name: str) -> dict[str, Leaf]:
    return {f"{name}.scale": Leaf((WIDTH,), fill=1.0), f"{name}.bias": Leaf((WIDTH,))}


def _conv(name: str, inputs: int, outputs: int) -> dict[str, Leaf]:
    return {f"{name}.kernel": Leaf((3, 3, inputs, outputs), (9 * inputs) ** -0.5), f"{name}.bias": Leaf((outputs,))}


def _transformer() -> dict[str, Leaf]:
    leaves = {"token.table": Leaf((VOCABULARY, WIDTH), 0.5), "place.table": Leaf((LENGTH, WIDTH), 0.1)}
    for i in range(BLOCKS):
        leaves |= _norm(f"block{i}.before")
        for part in ("query", "key", "value", "mix"):
            leaves |= _dense(f"block{i}.{part}", WIDTH, WIDTH)
        leaves |= _norm(f"block{i}.between")
        leaves |= _dense(f"block{i}.up", WIDTH, 4 * WIDTH) | _dense(f"block{i}.down", 4 * WIDTH, WIDTH)
    return leaves | _norm("last") | _dense("out", WIDTH, VOCABULARY)


JOBS = {
    job.name: job
    for job in (
        Job("mlp", 100, 200, _dense("in", 784, 128) | _dense("out", 128, CLASSES)),
        Job("cnn", 32, 60, _conv("one", 1, 8) | _conv("two", 8, 16) | _dense("out", 7 * 7 * 16, CLASSES)),
        Job("transformer", 16, 50, _transformer()),
    )
}
"""784-128-10 with ReLU; two 3x3 convolutions, ReLU, 2x2 maximum; two causal blocks of width 64 with four heads."""
