"""Loops written by hand in JAX: a jitted call per step, and the limit, one scan over fifty steps of device data.

Each writes a JSON line per step, its loss read one step late, as nitro does. The programs of a job are built once per
process.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from .jax_models import adam, cross_entropy, initial, network
from .jobs import JOBS, Job
from .watch import Watch

__all__ = ["limit", "resident", "streamed"]

SCANNED = 50


@functools.cache
def _programs(name: str) -> tuple[Any, Any, Any, Any]:
    """Initialisation, a step on a batch, a step on rows of device data, and fifty of those."""
    job, optimizer = JOBS[name], adam()
    model = network(job)

    def begin(key: jax.Array) -> Any:
        params = initial(job, key)
        return params, optimizer.init(params)

    def step(carry: Any, x: jax.Array, y: jax.Array) -> Any:
        params, opt = carry
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(model(p, x), y))(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    def gathered(carry: Any, x: jax.Array, y: jax.Array, rows: jax.Array) -> Any:
        return step(carry, x[rows], y[rows])

    def scanned(carry: Any, x: jax.Array, y: jax.Array, order: jax.Array) -> Any:
        return jax.lax.scan(lambda c, rows: gathered(c, x, y, rows), carry, order)

    return jax.jit(begin), *(jax.jit(f, donate_argnums=0) for f in (step, gathered, scanned))


class _Log:
    """A JSON line per step, and the mean of the epoch."""

    def __init__(self, file: Any, watch: Watch) -> None:
        self._file, self._watch = file, watch
        self.step, self.total = 0, 0.0

    @property
    def wants_first(self) -> bool:
        """Whether the first step is waited for."""
        return self._watch.wants_first and self.step == 0

    def add(self, loss: Any) -> None:
        value = float(loss)
        self.step += 1
        self.total += value
        self._file.write(json.dumps({"step": self.step, "loss": value}) + "\n")
        self._file.flush()
        if self._watch.wants_first:
            self._watch.first()


@contextmanager
def _logged(watch: Watch) -> Iterator[_Log]:
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log.jsonl", "w") as file:
        yield _Log(file, watch)


def _train(job: Job, epochs: int, watch: Watch, epoch_of: Callable[[Any, np.ndarray, _Log], Any]) -> None:
    carry = _programs(job.name)[0](jax.random.key(0))
    with _logged(watch) as log:
        for epoch in range(epochs):
            watch.begin()
            log.total = 0.0
            order = np.random.default_rng(epoch).permutation(job.samples).astype(np.int32).reshape(job.steps, job.batch)
            carry = epoch_of(carry, order, log)
            watch.end(log.total / job.steps)


def _per_step(call: Callable[[Any, np.ndarray], Any], carry: Any, order: np.ndarray, log: _Log) -> Any:
    late = None
    for rows in order:
        carry, loss = call(carry, rows)
        if late is not None:
            log.add(late)
        late = loss
        if log.wants_first:
            log.add(late)
            late = None
    if late is not None:
        log.add(late)
    return carry


def streamed(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """Every batch is gathered on the host and handed to the step."""
    x, y = data["x"], data["y"]
    step = _programs(job.name)[1]
    _train(job, epochs, watch, functools.partial(_per_step, lambda carry, rows: step(carry, x[rows], y[rows])))


def resident(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """The data is on the device, the step gets the rows of its batch."""
    x, y = jax.device_put((data["x"], data["y"]))
    step = _programs(job.name)[2]
    _train(job, epochs, watch, functools.partial(_per_step, lambda carry, rows: step(carry, x, y, rows)))


def limit(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """The data is on the device and one call scans over fifty steps: nothing on the host can be faster."""
    x, y = jax.device_put((data["x"], data["y"]))
    scan = _programs(job.name)[3]

    def run(carry: Any, order: np.ndarray, log: _Log) -> Any:
        late = None
        for start in range(0, job.steps, SCANNED):
            carry, losses = scan(carry, x, y, order[start : start + SCANNED])
            for loss in [] if late is None else np.asarray(late).tolist():
                log.add(loss)
            late = losses
        for loss in np.asarray(late).tolist():
            log.add(loss)
        return carry

    _train(job, epochs, watch, run)
