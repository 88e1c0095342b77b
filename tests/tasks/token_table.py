"""A language model that is a table of logits by token, and its gradient by hand. Called as a program with a folder, it
trains on four devices and prints how far off the gradient is.
"""

import json
import os
import sys
from typing import Any

import numpy as np

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import jax.numpy as jnp

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.experiment import Host
from nitro_cli.optim import Optim
from nitro_cli.tasks import CausalLM, Task

V = 7
RATE = 0.5


def token_rows(count, length=6, seed=0, scored=0.6):
    """Random ids and labels, of which some do not count, in unlike shares per row."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (count, length)).astype(np.int32)
    label = rng.integers(0, V, (count, length)).astype(np.int32)
    shares = np.linspace(0.05, scored, count)[:, None]
    return {"tokens": tokens, "label": np.where(rng.random((count, length)) < shares, label, -100).astype(np.int32)}


class TokenTable(Experiment):
    """Logits of the next token by the token before it."""

    task: Task = CausalLM(V)
    optim: Optim = Optim("sgd")
    rows: Host[int] = 16
    batch_size: Host[int] = 16
    source: Host[Any] = None
    learning_rate = RATE
    max_epochs = 1
    logger = None
    checkpointer = None
    monitor = None

    def build_data(self, dist):
        arrays = token_rows(self.rows) if self.source is None else self.source
        size = min(self.batch_size, len(next(iter(arrays.values()))))
        return {"train": ArrayBatches(arrays, size), "val": ArrayBatches(arrays, size)}

    def build_model(self, rng):
        return lambda p, state, ids: (p["table"][ids], state), {"table": jnp.asarray(start())}, {}

    def forward(self, model, params, state, *, tokens):
        return model(params, state, tokens)


def start():
    return np.random.default_rng(1).normal(size=(V, V)).astype(np.float32)


def by_hand(data, smoothing=0.0):
    """Loss and gradient of the table in float64, over the labels that count."""
    table = start().astype(np.float64)
    p = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    total, gradient, count = 0.0, np.zeros_like(table), 0
    for token, label in zip(data["tokens"].ravel(), data["label"].ravel(), strict=True):
        if label == -100:
            continue
        wanted = np.full(V, smoothing / V)
        wanted[label] += 1 - smoothing
        total -= wanted @ np.log(p[token])
        gradient[token] += p[token] - wanted
        count += 1
    return total / count, gradient / count, count


def off_by(handle, data):
    """How far the step's gradient is from the one by hand."""
    found = (start().astype(np.float64) - np.asarray(handle.params["table"], np.float64)) / RATE
    return float(np.abs(found - by_hand(data)[1]).max())


if __name__ == "__main__":
    found = {}
    for devices, parts in ((4, 1), (4, 4)):
        e = TokenTable(batch_size=16 // parts, accum=parts, n_devs=devices, run_dir=f"{sys.argv[1]}/{devices}{parts}")
        found[f"{devices} {parts}"] = off_by(Nitro(e).train(), token_rows(16))
    print(json.dumps(found))
