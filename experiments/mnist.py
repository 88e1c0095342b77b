"""MNIST: the tutorial's perceptron with everything on, and a convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli import (
    ArrayBatches,
    Checkpointer,
    Device,
    Dist,
    EarlyStopping,
    Experiment,
    ExportSpec,
    GraphConst,
    Mean,
    Sum,
    default_no_decay,
)
from nitro_cli.data.sets import MNIST_FILES, read_idx
from nitro_cli.errors import ConfigError
from nitro_cli.optim import one_cycle

__all__ = ["CLASSES", "SIDE", "MnistCNN", "MnistImages", "MnistMLP", "apply_dense", "dense"]

CLASSES = 10
SIDE = 28
TRAIN_IMAGES = 55_000
SOFTMAX = '''\
"""Class probabilities from the program's logits."""

import numpy as np


def postprocess(outputs):
    logits = outputs["logits"]
    scaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return {"probabilities": scaled / scaled.sum(axis=-1, keepdims=True)}
'''


def load_split(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as float32 (n, 28, 28) in 0..1 and labels as int32 (n,) of `train` or `t10k`."""
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz").astype(np.float32) / 255
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz").astype(np.int32)
    return images, labels


def confusion_matrix(predicted: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Counts, int64 (10, 10): row the true class, column the predicted one."""
    flat = np.bincount(CLASSES * label + predicted, minlength=CLASSES * CLASSES)
    return flat.reshape(CLASSES, CLASSES)


def macro_recall(confusion: np.ndarray) -> float:
    """The mean over classes of the share of its samples that were found."""
    return float(np.mean(np.diag(confusion) / np.maximum(confusion.sum(axis=1), 1)))


class MnistImages(Experiment):
    """The images and labels that every MNIST experiment is trained on."""

    data_dir: Path | None = None
    """Folder with the four IDX files; unset, the ones that come with nitro."""

    batch_size: int = 100
    """Images per micro-batch. Must divide 55,000."""

    def build_data(self, dist: Dist) -> dict[str, ArrayBatches]:
        """55,000 training images, 5,000 for validation, 10,000 for the test."""
        folder = self.data_dir or MNIST_FILES
        if TRAIN_IMAGES % self.batch_size:
            raise ConfigError(
                f"batch_size = {self.batch_size} does not divide the {TRAIN_IMAGES} training images",
                fix="choose a divisor, 50, 100, 125, 200, 250 say",
            )
        images, labels = load_split(folder, "train")
        test_images, test_labels = load_split(folder, "t10k")
        train, val = slice(0, TRAIN_IMAGES), slice(TRAIN_IMAGES, None)

        def batches(image: np.ndarray, label: np.ndarray, shuffle: bool = False) -> ArrayBatches:
            arrays = {"image": self.shaped(image), "label": label}
            return ArrayBatches(arrays, self.batch_size, shuffle=shuffle)

        return {
            "train": batches(images[train], labels[train], shuffle=True),
            "val": batches(images[val], labels[val]),
            "test": batches(test_images, test_labels),
        }

    def shaped(self, images: Any) -> Any:
        """The images in the shape that the model takes."""
        return images


class Mnist(MnistImages):
    """What the experiments with a loss and metrics of their own share."""

    smoothing: Device[float] = 0.05
    """Label smoothing: the share of the target spread over all classes. Sweep or schedule it, nothing recompiles."""

    temperature: Device[float] = 1.0
    """Softmax temperature, for calibration after training; 1 changes nothing."""

    class_weights: Device[Any] = np.ones(CLASSES, np.float32)
    """Weight of each class in the loss, derived from the training labels: inverse frequency, mean 1."""

    monitor = ("macro_recall", "max")

    def derive(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Class weights from the training split's label counts."""
        if "train" not in data or not isinstance(data["train"], ArrayBatches):
            return {}
        counts = np.bincount(data["train"].arrays["label"], minlength=CLASSES)
        weights = 1 / np.maximum(counts, 1)
        return {"class_weights": (weights / weights.mean()).astype(np.float32)}

    def forward(self, model: Any, params: Any, state: Any, *, image: jax.Array) -> tuple[jax.Array, Any]:
        """Logits over the ten classes, divided by the temperature."""
        logits, state = model(params, state, image)
        return logits / self.temperature, state

    def loss(self, outputs: jax.Array, *, label: jax.Array) -> jax.Array:
        """Class-weighted cross-entropy against smoothed targets, the mean over images."""
        target = jax.nn.one_hot(label, CLASSES)
        target = (1 - self.smoothing) * target + self.smoothing / CLASSES
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(outputs) * self.class_weights, axis=-1))

    def train_metrics(self, outputs: jax.Array, *, label: jax.Array) -> dict[str, jax.Array]:
        """Accuracy of the batch and the mean size of its logits."""
        return {
            "batch_acc": jnp.mean(jnp.argmax(outputs, axis=-1) == label),
            "logit_mag": jnp.mean(jnp.abs(outputs)),
        }

    def metrics(self, outputs: np.ndarray, *, label: np.ndarray) -> dict[str, Any]:
        """Accuracy per image, and the confusion matrix to sum over the split."""
        predicted = outputs.argmax(axis=-1)
        return {
            "acc": Mean((predicted == label).sum(), label.size),
            "confusion": Sum(confusion_matrix(predicted, label)),
        }

    def finalize_metrics(self, acc: Mapping[str, Any], split: str) -> dict[str, Any]:
        """Accuracy and macro recall of the whole split."""
        return {"macro_recall": macro_recall(acc["confusion"]), "acc": acc["acc"]}

    def schedules(self) -> dict[str, Any]:
        """One cycle to the base learning rate over the whole run."""
        return {"learning_rate": one_cycle(self.learning_rate)}

    def export_inputs(self) -> list[ExportSpec]:
        """Grey images as they come from a camera or a file."""
        return [ExportSpec("image", "uint8", (1, SIDE, SIDE))]

    def export_outputs(self) -> list[ExportSpec]:
        """The logits."""
        return [ExportSpec("logits")]

    def export_preprocess(self, image: jax.Array) -> dict[str, jax.Array]:
        """Bytes to 0..1, in the shape that the model takes."""
        return {"image": self.shaped(jnp.asarray(image).astype(jnp.float32) / 255)}

    def export_postprocess(self) -> str:
        """Logits to probabilities, outside the program."""
        return SOFTMAX

    def export_client_outputs(self) -> list[ExportSpec]:
        """What a client receives: a probability per class."""
        return [ExportSpec("probabilities", "float32", (1, CLASSES))]

    def export_provenance_extra(self, *, checkpoint: str | None) -> dict[str, Any]:
        """The class names, in the order of the outputs."""
        return {"class_names": [str(digit) for digit in range(CLASSES)]}


def dense(rng: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Weights of a dense layer: Glorot-uniform kernel f32[inputs, outputs], zero bias."""
    kernel = jax.nn.initializers.glorot_uniform()(rng, (inputs, outputs))
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def apply_dense(layer: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """`x @ kernel + bias`."""
    return x @ layer["kernel"] + layer["bias"]


class MnistMLP(Mnist):
    """Two-layer perceptron on MNIST: the tutorial's experiment."""

    width: GraphConst[int] = 128
    """Width of the hidden layer. Structural: another value is another program."""

    max_epochs = 20
    accum = 2
    gradient_clip_norm = 1.0
    checkpointer = Checkpointer(keep=("best(3)", "last(1)"))
    early_stop = EarlyStopping(patience=5)

    def shaped(self, images: Any) -> Any:
        """Each image as a row of 784 values."""
        return images.reshape(images.shape[0], SIDE * SIDE)

    def build_model(self, rng: jax.Array) -> tuple[Any, Any, Any]:
        """An encoder of one hidden layer and a linear head, as a plain function."""
        encoder, head = jax.random.split(rng)
        params = {"encoder": dense(encoder, SIDE * SIDE, self.width), "head": dense(head, self.width, CLASSES)}
        return perceptron, params, {}

    def param_group(self, path: tuple[Any, ...]) -> str:
        """The encoder decays, the head does not."""
        return "encoder" if path[0] == "encoder" else "default"

    def group_weight_decay(self, group: str) -> float:
        """Decoupled decay on the encoder only."""
        return 1e-4 if group == "encoder" else self.weight_decay


def perceptron(params: Any, state: Any, image: jax.Array) -> tuple[jax.Array, Any]:
    """Logits f32[batch, 10] of flattened images f32[batch, 784]."""
    hidden = jax.nn.relu(apply_dense(params["encoder"], image))
    return apply_dense(params["head"], hidden), state


class MnistCNN(Mnist):
    """Convolutional network on MNIST, with batch statistics and dropout."""

    channels: GraphConst[tuple[int, int]] = (16, 32)
    """Channels of the two convolutions."""

    width: GraphConst[int] = 128
    """Width of the hidden dense layer."""

    dropout: Device[float] = 0.3
    """Share of the hidden layer dropped in training."""

    learning_rate = 4e-3
    weight_decay = 1e-2
    max_epochs = 10
    smoothing = 0.0

    def shaped(self, images: Any) -> Any:
        """Images with one channel, (n, 28, 28, 1)."""
        return images[..., None]

    def build_model(self, rng: jax.Array) -> tuple[Any, Any, Any]:
        """Two convolutions with batch normalization and pooling, then two dense layers."""
        first, second, hidden, head = jax.random.split(rng, 4)
        low, high = self.channels
        flat = high * (SIDE // 4) ** 2
        params = {
            "conv1": conv(first, 1, low),
            "conv2": conv(second, low, high),
            "hidden": dense(hidden, flat, self.width),
            "head": dense(head, self.width, CLASSES),
        }
        state = {"conv1": running_statistics(low), "conv2": running_statistics(high)}
        return convolutional, params, state

    def forward(self, model: Any, params: Any, state: Any, *, image: jax.Array) -> tuple[jax.Array, Any]:
        """Logits over the ten classes, divided by the temperature."""
        logits, state = model(params, state, image, self.dropout)
        return logits / self.temperature, state

    def no_decay(self, path: tuple[Any, ...], leaf: Any) -> bool:
        """Biases, norms and the head do not decay."""
        return default_no_decay(path, leaf) or path[0] == "head"


def conv(rng: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Weights of a 3 x 3 convolution (He-normal, height, width, in, out) and its batch normalization."""
    kernel = jax.nn.initializers.he_normal(in_axis=(0, 1, 2), out_axis=3)(rng, (3, 3, inputs, outputs))
    return {"kernel": kernel, "scale": jnp.ones(outputs), "bias": jnp.zeros(outputs)}


def running_statistics(channels: int) -> dict[str, jax.Array]:
    """Mean and variance that evaluation normalizes by."""
    return {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}


def normalize(
    layer: Mapping[str, jax.Array], running: Mapping[str, jax.Array], x: jax.Array, train: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Batch normalization (Ioffe and Szegedy, 2015) over batch and positions, momentum 0.9."""
    if train:
        mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
        updated = {
            "mean": 0.9 * running["mean"] + 0.1 * mean,
            "variance": 0.9 * running["variance"] + 0.1 * variance,
        }
    else:
        mean, variance, updated = running["mean"], running["variance"], dict(running)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["bias"], updated


def convolutional(
    params: Any, state: Any, image: jax.Array, rate: jax.Array, *, train: bool, key: jax.Array | None
) -> tuple[jax.Array, Any]:
    """Logits f32[batch, 10] of images f32[batch, 28, 28, 1]."""
    x, updated = image, {}
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[name]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x, updated[name] = normalize(params[name], state[name], x, train)
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(apply_dense(params["hidden"], x.reshape(x.shape[0], -1)))
    if train and key is not None:
        keep = jax.random.bernoulli(key, 1 - rate, x.shape)
        x = jnp.where(keep, x / (1 - rate), 0)
    return apply_dense(params["head"], x), updated
