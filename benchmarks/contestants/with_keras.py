"""Keras 3 on its JAX backend: `compile` and `fit` on the arrays, silent."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

from .jobs import BLOCKS, CLASSES, EPSILON, HEADS, LEARNING_RATE, LENGTH, VOCABULARY, WIDTH, Job
from .watch import Watch

__all__ = ["fit"]


def _mlp() -> Any:
    parts = [layers.Dense(128, activation="relu", name="in"), layers.Dense(CLASSES, name="out")]
    return keras.Sequential([keras.Input((784,)), *parts])


def _cnn() -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="one"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="two"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(CLASSES, name="out"),
        ]
    )


@keras.saving.register_keras_serializable("contestants")
class _Places(layers.Layer):
    """Adds a learned vector per place."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(LENGTH, WIDTH), name="table")

    def call(self, h: Any) -> Any:
        return h + self.table


def _gelu(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=True)


def _transformer() -> Any:
    x = keras.Input((LENGTH,), dtype="int32")
    h = _Places(name="place")(layers.Embedding(VOCABULARY, WIDTH, name="token")(x))
    for i in range(BLOCKS):
        normed = layers.LayerNormalization(epsilon=1e-5, name=f"block{i}.before")(h)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"block{i}.attention")
        h = layers.Add()([h, attention(normed, normed, use_causal_mask=True)])
        normed = layers.LayerNormalization(epsilon=1e-5, name=f"block{i}.between")(h)
        up = layers.Dense(4 * WIDTH, activation=_gelu, name=f"block{i}.up")(normed)
        h = layers.Add()([h, layers.Dense(WIDTH, name=f"block{i}.down")(up)])
    h = layers.LayerNormalization(epsilon=1e-5, name="last")(h)
    return keras.Model(x, layers.Dense(VOCABULARY, name="out")(h))


def _give_weights(model: Any, job: Job) -> None:
    """The job's first values. An attention's weights come in the order query, key, value, output."""
    weights = job.weights()
    for layer in model.layers:
        if layer.name.endswith("attention"):
            stem = layer.name.removesuffix("attention")
            names = [f"{stem}{part}.{kind}" for part in ("query", "key", "value", "mix") for kind in ("kernel", "bias")]
        else:
            names = [name for name in weights if name.rpartition(".")[0] == layer.name]
        if names:
            given = [weights.pop(n) for n in names]
            layer.set_weights([v.reshape(w.shape) for v, w in zip(given, layer.weights, strict=True)])
    assert not weights, f"weights without a layer: {sorted(weights)}"


class _Watching(keras.callbacks.Callback):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._watch.begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._watch.end(float(logs["loss"]))


class _WaitingForFirst(_Watching):
    """A callback per batch makes Keras read the loss at once, so it is used only where the first step is asked for."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])
        self._watch.first()


def fit(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """`model.fit` with shuffling."""
    keras.utils.clear_session()
    model = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}[job.name]()
    _give_weights(model, job)
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    watching = (_WaitingForFirst if watch.wants_first else _Watching)(watch)
    model.fit(data["x"], data["y"], batch_size=job.batch, epochs=epochs, verbose=0, callbacks=[watching])
