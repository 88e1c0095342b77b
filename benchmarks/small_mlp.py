"""Steady training speed of the small MLP (784-128-10, batch 100) beside a hand-written JAX loop doing the same work.

The same model, optimizer (Adam), data order and log file. Contestants run in turn; the hand-written loop runs
twice, against itself as a control. Ratios are steps per second over the hand-written loop's, pair by pair. CPU
seconds are printed beside the wall clock, because they scatter less on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from clock import EpochClock

from nitro_cli import ArrayBatches, Experiment, Nitro, NoPrefetch, set_progress_reporter

SAMPLES, BATCH, FEATURES, WIDTH, CLASSES = 20_000, 100, 784, 128, 10
STEPS = SAMPLES // BATCH


def data() -> dict[str, np.ndarray]:
    """Made data of MNIST's sizes: float32 images (n, 784), int32 labels (n,)."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.random((SAMPLES, FEATURES), dtype=np.float32),
        "label": rng.integers(0, CLASSES, SAMPLES).astype(np.int32),
    }


DATA = data()


def initial(rng: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Weights of both layers."""
    a, b = jax.random.split(rng)
    return {
        "in": {"kernel": jax.random.normal(a, (FEATURES, WIDTH)) * 0.05, "bias": jnp.zeros(WIDTH)},
        "out": {"kernel": jax.random.normal(b, (WIDTH, CLASSES)) * 0.05, "bias": jnp.zeros(CLASSES)},
    }


def logits_of(params: Any, image: jax.Array) -> jax.Array:
    """Logits f32[batch, 10]."""
    hidden = jax.nn.relu(image @ params["in"]["kernel"] + params["in"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()


class SmallMLP(Experiment):
    """The job in nitro."""

    feed: str = "resident"
    max_epochs = 3
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        """Resident, prefetched or inline batches."""
        source = ArrayBatches(DATA, BATCH, shuffle=True, resident=self.feed == "resident")
        return {"train": NoPrefetch(source) if self.feed == "inline" else source}

    def build_model(self, rng: jax.Array) -> Any:
        """A plain function."""
        return (lambda params, state, image: (logits_of(params, image), state)), initial(rng), {}

    def optimizer(self, group: str) -> Any:
        """Adam."""
        return optax.adam

    def forward(self, model: Any, params: Any, state: Any, *, image: jax.Array) -> Any:
        """Logits."""
        return model(params, state, image)

    def loss(self, outputs: jax.Array, *, label: jax.Array) -> jax.Array:
        """Cross-entropy."""
        return cross_entropy(outputs, label)


def by_hand(epochs: int) -> Callable[[], tuple[float, float]]:
    """The loop as one writes it: a jitted step, batches gathered by shuffled indices, the loss logged a step late."""
    optimizer = optax.adam(1e-3)

    def step(params: Any, opt: Any, image: jax.Array, label: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(logits_of(p, image), label))(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))

    def run() -> tuple[float, float]:
        params = initial(jax.random.key(0))
        opt = optimizer.init(params)
        wall: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log.jsonl", "w") as log:
            for epoch in range(epochs):
                order = np.random.default_rng(epoch).permutation(SAMPLES)
                start = time.perf_counter(), time.process_time()
                late = None
                for i in range(STEPS):
                    rows = order[i * BATCH : (i + 1) * BATCH]
                    params, opt, loss = compiled(params, opt, DATA["image"][rows], DATA["label"][rows])
                    if late is not None:
                        log.write(json.dumps({"step": i, "loss": float(late)}) + "\n")
                        log.flush()
                    late = loss
                assert late is not None
                float(late)
                wall.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        return _per_step(wall[1:])

    return run


def with_nitro(feed: str, epochs: int) -> Callable[[], tuple[float, float]]:
    """nitro's loop; the first epoch compiles and is left out."""

    def run() -> tuple[float, float]:
        clock = EpochClock()
        previous = set_progress_reporter(clock)
        try:
            with tempfile.TemporaryDirectory() as folder:
                Nitro(SmallMLP(feed=feed), max_epochs=epochs, run_dir=folder).train()
        finally:
            set_progress_reporter(previous)
        return _per_step(clock.train[1:])

    return run


def _per_step(epochs: list[tuple[float, float]]) -> tuple[float, float]:
    return tuple(statistics.median(e[i] for e in epochs) / STEPS * 1e6 for i in (0, 1))  # type: ignore[return-value]


def main() -> None:
    """Run the contestants in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    contestants = {
        "by hand": by_hand(options.epochs),
        "by hand again": by_hand(options.epochs),
        "nitro, resident": with_nitro("resident", options.epochs),
        "nitro, prefetched": with_nitro("prefetched", options.epochs),
        "nitro, inline": with_nitro("inline", options.epochs),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(options.repeats):
        for name, run in contestants.items():
            # What earlier contestants left in memory must cost nobody time.
            gc.collect()
            gc.freeze()
            found[name].append(run())
    print(f"{'':20}{'us/step':>10}{'cpu us':>10}{'ratio min':>12}{'median':>9}{'max':>9}{'cpu ratio':>11}")
    for name, rows in found.items():
        ratios = [hand[0] / row[0] for hand, row in zip(found["by hand"], rows, strict=True)]
        cpu = [hand[1] / row[1] for hand, row in zip(found["by hand"], rows, strict=True)]
        print(
            f"{name:20}{statistics.median(r[0] for r in rows):10.0f}{statistics.median(r[1] for r in rows):10.0f}"
            f"{min(ratios):12.2f}{statistics.median(ratios):9.2f}{max(ratios):9.2f}{statistics.median(cpu):11.2f}"
        )


if __name__ == "__main__":
    main()
