"""A least-squares GAN on pictures it makes itself: one blob of light at one of eight places.

Manual mode: the experiment sequences its own optimizer steps, generator and discriminator each with its own optimizer
and schedule, and nitro does everything around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nitro_cli import EMA, ArrayBatches, Checkpointer, Device, Dist, Experiment, GraphConst, Mean, Sum
from nitro_cli.optim import linear

__all__ = ["BlobGAN"]

SIDE = 8
PLACES = 8
RADIUS, SPREAD = 2.2, 0.9
MATCH = 0.25
"""A picture counts as a blob when its distance to the nearest template is at most this share of the template's norm."""

ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3, b1=0.5)
"""Both networks' rule; the learning rate that counts is in its state, where the schedules write it."""


def templates() -> np.ndarray:
    """The eight noiseless pictures, float32 (8, 64): one blob each, on a circle around the middle."""
    angle = 2 * np.pi * np.arange(PLACES) / PLACES
    centre = (SIDE - 1) / 2 + RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return blobs(centre)


def blobs(centre: np.ndarray) -> np.ndarray:
    """A Gaussian blob at each centre, float32 (n, 64) in 0..1."""
    axis = np.arange(SIDE)
    rows = np.exp(-((axis - centre[:, :1]) ** 2) / (2 * SPREAD**2))
    columns = np.exp(-((axis - centre[:, 1:]) ** 2) / (2 * SPREAD**2))
    return (rows[:, :, None] * columns[:, None, :]).reshape(len(centre), -1).astype(np.float32)


class BlobGAN(Experiment):
    """Least-squares GAN (Mao et al. 2017, arXiv:1611.04076) whose data has eight modes to cover."""

    latent: GraphConst[int] = 16
    """Size of the latent vector."""

    width: GraphConst[int] = 128
    """Width of the hidden layers of both networks."""

    noise: Device[float] = 0.3
    """Noise on what the discriminator sees, falling to a sixth: without it the generator settles on a few modes."""

    pictures: int = 8000
    """How many training pictures are made."""

    batch_size: int = 100
    """Pictures per step."""

    max_epochs = 60
    ema = EMA(0.999)
    monitor = ("even", "max")
    checkpointer = Checkpointer(keep=("best(1)", "last(1)"))

    def build_data(self, dist: Dist) -> dict[str, ArrayBatches]:
        """Noisy, jittered blobs with, for evaluation, the latent vectors to generate from."""
        rng = np.random.default_rng(0)

        def made(n: int) -> dict[str, np.ndarray]:
            angle = 2 * np.pi * rng.integers(0, PLACES, n) / PLACES
            centre = (SIDE - 1) / 2 + RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)
            image = blobs(centre + rng.normal(0, 0.1, centre.shape)) * rng.uniform(0.85, 1.0, (n, 1))
            image = np.clip(image + rng.normal(0, 0.02, image.shape), 0, 1)
            z = rng.normal(size=(n, self.latent))
            return {"image": image.astype(np.float32), "z": z.astype(np.float32)}

        return {
            "train": ArrayBatches(made(self.pictures), self.batch_size, shuffle=True, drop_last=True),
            "val": ArrayBatches(made(1000), self.batch_size),
        }

    def build_model(self, rng: jax.Array) -> tuple[Any, Any, Any]:
        """Generator and discriminator, two hidden layers each, in one parameter tree."""
        keys = jax.random.split(rng, 2)
        params = {
            "generator": perceptron(keys[0], (self.latent, self.width, self.width, SIDE * SIDE)),
            "discriminator": perceptron(keys[1], (SIDE * SIDE, self.width, self.width, 1)),
        }
        return generate, params, {}

    def forward(self, model: Any, params: Any, state: Any, *, z: jax.Array) -> tuple[jax.Array, Any]:
        """Pictures f32[batch, 64] from latent vectors f32[batch, latent]."""
        return model(params, state, z)

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> dict[str, Any]:
        """One optimizer state per network."""
        return {name: ADAM.init(params[name]) for name in params}

    def schedules(self) -> dict[str, Any]:
        """Both rates and the noise fall over the run."""
        return {
            "opt.generator.learning_rate": linear(1e-3, 3e-4),
            "opt.discriminator.learning_rate": linear(1e-3, 3e-4),
            "noise": linear(self.noise, self.noise / 6),
        }

    def train_step(
        self, model: Any, params: Any, opt_state: Any, state: Any, *, image: jax.Array
    ) -> tuple[jax.Array, Any, Any, Any, dict[str, jax.Array]]:
        """One step of the discriminator, then one of the generator against it."""
        keys = jax.random.split(model.key, 5)
        real_noise, fake_noise, later_noise = (self.noise * jax.random.normal(key, image.shape) for key in keys[:3])
        fake = generate(params, state, jax.random.normal(keys[3], (image.shape[0], self.latent)))[0] + fake_noise
        image = image + real_noise
        d_loss, d_grads = jax.value_and_grad(discriminator_loss)(params["discriminator"], image, fake)
        d_updates, d_opt = ADAM.update(d_grads, opt_state["discriminator"], params["discriminator"])
        discriminator = optax.apply_updates(params["discriminator"], d_updates)

        z = jax.random.normal(keys[4], (image.shape[0], self.latent))
        g_loss, g_grads = jax.value_and_grad(generator_loss)(params["generator"], discriminator, z, later_noise)
        g_updates, g_opt = ADAM.update(g_grads, opt_state["generator"], params["generator"])
        generator = optax.apply_updates(params["generator"], g_updates)

        params = {"generator": generator, "discriminator": discriminator}
        opt_state = {"generator": g_opt, "discriminator": d_opt}
        stats = {"g_loss": g_loss, "d_loss": d_loss}
        return g_loss + d_loss, params, state, opt_state, stats

    def metrics(self, outputs: np.ndarray, *, z: np.ndarray) -> dict[str, Any]:
        """Which template each generated picture is nearest to, and whether it is near enough to count."""
        known = templates()
        brightness = outputs @ known.T / np.sum(known**2, axis=1)
        distance = np.linalg.norm(outputs[:, None] - brightness[..., None] * known, axis=-1)
        nearest = distance.argmin(axis=1)
        good = distance[np.arange(len(z)), nearest] <= MATCH * np.linalg.norm(known, axis=1)[nearest]
        counts = np.bincount(nearest[good], minlength=PLACES)
        return {"places": Sum(counts), "quality": Mean(good.sum(), len(z))}

    def finalize_metrics(self, acc: Mapping[str, Any], split: str) -> dict[str, Any]:
        """How many places are covered, and how many pictures are blobs.

        Returns:
            `covered`: places with at least a quarter of an even share. `quality`: the share of pictures that are blobs.
            `even`: the same, no place counted beyond an eighth of all pictures, so that it is 1 for pictures like the
            data and falls with each place that is missed.
        """
        good = max(int(acc["places"].sum()), 1)
        shares = acc["places"] / good
        covered = int((shares >= 1 / PLACES / 4).sum())
        even = float(np.minimum(shares * acc["quality"], 1 / PLACES).sum())
        return {"covered": covered, "quality": acc["quality"], "even": even}

    def visualize(self, outputs: np.ndarray | None, *, image: np.ndarray) -> Any:
        """The generated picture, or without predictions the real one."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2, 2))
        axes = figure.subplots()
        shown = image if outputs is None else outputs
        axes.imshow(shown.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
        axes.set_axis_off()
        return figure


def perceptron(rng: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    """Weights of dense layers between `sizes`, He-normal kernels and zero biases."""
    keys = jax.random.split(rng, len(sizes) - 1)
    return [
        {"kernel": jax.nn.initializers.he_normal()(key, (n, m)), "bias": jnp.zeros(m)}
        for key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_perceptron(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Leaky ReLU between the layers, nothing after the last."""
    for layer in layers[:-1]:
        x = jax.nn.leaky_relu(x @ layer["kernel"] + layer["bias"], 0.2)
    return x @ layers[-1]["kernel"] + layers[-1]["bias"]


def generate(params: Any, state: Any, z: jax.Array) -> tuple[jax.Array, Any]:
    """Pictures f32[batch, 64] in 0..1."""
    return jax.nn.sigmoid(apply_perceptron(params["generator"], z)), state


def discriminator_loss(discriminator: Any, image: jax.Array, fake: jax.Array) -> jax.Array:
    """Least squares to 1 for real pictures and to 0 for generated ones (equation 2 of the paper, a = 0, b = 1)."""
    real_score, fake_score = apply_perceptron(discriminator, image), apply_perceptron(discriminator, fake)
    return 0.5 * jnp.mean((real_score - 1) ** 2) + 0.5 * jnp.mean(fake_score**2)


def generator_loss(generator: Any, discriminator: Any, z: jax.Array, noise: jax.Array) -> jax.Array:
    """Least squares of the discriminator's score of generated pictures to 1 (equation 2, c = 1)."""
    fake = jax.nn.sigmoid(apply_perceptron(generator, z)) + noise
    return 0.5 * jnp.mean((apply_perceptron(discriminator, fake) - 1) ** 2)
