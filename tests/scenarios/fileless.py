"""The text of an experiment that is defined where there is no file: in a notebook cell, or under `python -c`."""

CLASS = '''
import jax.numpy as jnp
import numpy as np
from nitro_cli import ArrayBatches, Device, Experiment, Mean, Nitro
from nitro_cli.errors import DivergenceError


class Line(Experiment):
    """A line through points."""

    offset: Device[float] = 0.0
    """What is added to every point."""

    poison: bool = False
    max_epochs = 2
    learning_rate = 0.1
    monitor = ("mse", "min")

    def build_data(self, dist):
        x = np.arange(8, dtype=np.float32).reshape(8, 1) / 8
        y = np.full_like(x, np.nan) if self.poison else 3 * x
        return {name: ArrayBatches({"x": x, "y": y}, 4) for name in ("train", "val")}

    def build_model(self, rng):
        return line, {"w": jnp.zeros((1,))}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x + self.offset)

    def loss(self, out, *, y):
        return jnp.mean(jnp.square(out - y))

    def metrics(self, out, *, y):
        return {"mse": Mean(np.square(out - y).sum(), y.size)}


def line(params, state, x):
    return x * params["w"], state
'''
