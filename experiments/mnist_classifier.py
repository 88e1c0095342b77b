"""MNIST by a task: data, model and `forward`; what follows from ten classes is the task's."""

from __future__ import annotations

from typing import Any

import jax

from nitro_cli import GraphConst
from nitro_cli.tasks import Categorical, Task

from .mnist import CLASSES, SIDE, MnistImages, apply_dense, dense

__all__ = ["MnistClassifier"]


class MnistClassifier(MnistImages):
    """Two-layer perceptron on MNIST whose loss and metrics are a task's."""

    task: Task = Categorical(CLASSES, labels=tuple(map(str, range(CLASSES))))
    """Ten classes, named by their digits."""

    width: GraphConst[int] = 128
    """Width of the hidden layer."""

    max_epochs = 10
    monitor = ("accuracy", "max")

    def shaped(self, images: Any) -> Any:
        """Each image as a row of 784 values."""
        return images.reshape(images.shape[0], SIDE * SIDE)

    def build_model(self, rng: jax.Array) -> tuple[Any, Any, Any]:
        """A hidden layer and a linear head, as a plain function."""
        hidden, head = jax.random.split(rng)
        return layers, {"hidden": dense(hidden, SIDE * SIDE, self.width), "head": dense(head, self.width, CLASSES)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, image: jax.Array) -> tuple[jax.Array, Any]:
        """Logits f32[batch, 10]."""
        return model(params, state, image)


def layers(params: Any, state: Any, image: jax.Array) -> tuple[jax.Array, Any]:
    """Logits f32[batch, 10] of flattened images f32[batch, 784]."""
    return apply_dense(params["head"], jax.nn.relu(apply_dense(params["hidden"], image))), state
