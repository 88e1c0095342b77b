"""The jobs in nitro, through its public names: resident data, as it decides by itself for arrays of this size, and
streamed. The JSON Lines log is on, as it is by default; no validation and no checkpoints, as for everyone."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import jax
import numpy as np
import optax

from nitro_cli import ArrayBatches, Experiment, Nitro, set_progress_reporter

from .jax_models import cross_entropy, initial, network
from .jobs import EPSILON, JOBS, LEARNING_RATE, Job
from .watch import Watch

__all__ = ["resident", "streamed"]

_DATA: dict[str, np.ndarray] = {}


class Contest(Experiment):
    """One of the jobs."""

    job: str = "mlp"
    feed: str = "resident"
    learning_rate = LEARNING_RATE
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        """Shuffled batches of the arrays."""
        return {"train": ArrayBatches(_DATA, JOBS[self.job].batch, shuffle=True, resident=self.feed == "resident")}

    def build_model(self, rng: jax.Array) -> Any:
        """The plain function."""
        job = JOBS[self.job]
        model = network(job)
        return (lambda params, state, x: (model(params, x), state)), initial(job, rng), {}

    def optimizer(self, group: str) -> Any:
        """Adam, with the epsilon that everyone has."""
        return functools.partial(optax.adam, eps=EPSILON)

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        """Logits."""
        return model(params, state, x)

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> jax.Array:
        """Cross-entropy."""
        return cross_entropy(outputs, y)


class _Reporter:
    """Passes the training stretches on to a watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._training = False

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        self._training = label == "train"
        if self._training:
            self._watch.begin()

    def end(self, values: Any) -> None:
        if self._training and values:
            self._watch.end(values["loss"])

    def step(self, n: int, values: Any) -> None:
        self._watch.first()

    def nothing(self, *args: Any) -> None:
        """Nothing to draw."""

    phase = note = line = done = nothing


def _train(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch, feed: str) -> None:
    _DATA.clear()
    _DATA.update(data)
    previous = set_progress_reporter(_Reporter(watch))
    try:
        with tempfile.TemporaryDirectory() as folder:
            Nitro(Contest(job=job.name, feed=feed), max_epochs=epochs, run_dir=folder).train()
    finally:
        set_progress_reporter(previous)


def resident(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """Arrays on the device."""
    _train(job, data, epochs, watch, "resident")


def streamed(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """Batches gathered on the host by producer threads."""
    _train(job, data, epochs, watch, "streamed")
