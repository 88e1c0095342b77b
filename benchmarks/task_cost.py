"""What a task costs: a training step and an evaluation pass beside the same written by hand.

The network is 784-128-10, batch 100. A step of an experiment whose task supplies the loss and the train metrics is
timed against one that writes both as hooks, at 1 and at 8 micro-batches. A pass over 10,000 images with five metrics is
timed against a jitted loop by hand that adds up the same sums. All in turn in one process; the hand-written side runs
twice, as a control.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from clock import EpochClock

from nitro_cli import ArrayBatches, Experiment, Mean, Nitro, set_progress_reporter
from nitro_cli.metrics import F1, Accuracy, BalancedAccuracy, Mcc, Nll
from nitro_cli.tasks import Categorical, Task

BATCH, ROWS, CLASSES = 100, 10_000, 10
FIVE = (Accuracy(), F1(), BalancedAccuracy(), Mcc(), Nll())


def images(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows of noise with a class each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 784)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, CLASSES, rows).astype(np.int32)}


TRAIN, TEST = images(20_000, 0), images(ROWS, 1)


def network(params: Any, state: Any, x: jax.Array) -> Any:
    """One hidden layer."""
    return jax.nn.relu(x @ params["a"]) @ params["b"], state


class Net(Experiment):
    """What both sides share."""

    max_epochs = 3
    logger = None
    checkpointer = None
    weight_decay = 0.0

    def build_data(self, dist: Any) -> dict[str, Any]:
        """Training rows resident on the device, test rows beside."""
        return {"train": ArrayBatches(TRAIN, BATCH, resident=True), "test": ArrayBatches(TEST, BATCH)}

    def build_model(self, rng: jax.Array) -> Any:
        """Random weights."""
        a, b = jax.random.split(rng)
        return network, {"a": jax.random.normal(a, (784, 128)) * 0.03, "b": jax.random.normal(b, (128, 10)) * 0.1}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        """Logits."""
        return model(params, state, x)

    def optimizer(self, group: str) -> Any:
        """Adam."""
        return optax.adam


class ByTask(Net):
    """Loss and metrics are the task's."""

    task: Task = Categorical(CLASSES, metrics=FIVE)


class ByHand(Net):
    """Loss and train metric are hooks."""

    def loss(self, outputs: jax.Array, *, label: jax.Array) -> jax.Array:
        """Cross-entropy."""
        return optax.softmax_cross_entropy_with_integer_labels(outputs, label).mean()

    def train_metrics(self, outputs: jax.Array, *, label: jax.Array) -> dict[str, Any]:
        """Accuracy."""
        return {"accuracy": Mean((outputs.argmax(-1) == label).sum(), label.size)}

    def metrics_residency(self, hook: str) -> Any:
        """On the device, as those of a task."""
        return "device"


def step_time(kind: type[Net], accum: int) -> float:
    """Microseconds of an optimizer step in the second and third epoch."""
    clock = EpochClock()
    previous = set_progress_reporter(clock)
    try:
        with tempfile.TemporaryDirectory() as folder:
            Nitro(kind(accum=accum), run_dir=folder).train()
    finally:
        set_progress_reporter(previous)
    return min(wall for wall, _ in clock.train[1:]) / (len(TRAIN["x"]) // BATCH // accum) * 1e6


def evaluation() -> tuple[Callable[[], float], Callable[[], float]]:
    """A pass of nitro and one by hand, each giving its milliseconds."""
    handle = Nitro(ByTask())
    params = handle.params

    @jax.jit
    def sums(params: Any, x: jax.Array, label: jax.Array) -> Any:
        logits = network(params, {}, x)[0]
        hot_p, hot_y = jax.nn.one_hot(logits.argmax(-1), CLASSES), jax.nn.one_hot(label, CLASSES)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, label).sum()
        return {"confusion": hot_y.T @ hot_p, "loss": nll}

    def by_hand() -> float:
        start = time.perf_counter()
        total = None
        for at in range(0, ROWS, BATCH):
            found = sums(params, TEST["x"][at : at + BATCH], TEST["label"][at : at + BATCH])
            total = found if total is None else jax.tree.map(jnp.add, total, found)
        jax.block_until_ready(total)
        return (time.perf_counter() - start) * 1e3

    def nitro() -> float:
        start = time.perf_counter()
        handle.evaluate("test")
        return (time.perf_counter() - start) * 1e3

    previous = set_progress_reporter(None)
    try:
        nitro(), by_hand()
    finally:
        set_progress_reporter(previous)
    return nitro, by_hand


def main() -> None:
    """Measure in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    words = parser.parse_args()
    set_progress_reporter(None)
    print(f"{'':28}{'by hand':>10}{'by hand again':>15}{'task':>10}{'ratio':>8}{'control':>9}")
    for accum in (1, 8):
        rounds = [
            (step_time(ByHand, accum), step_time(ByHand, accum), step_time(ByTask, accum)) for _ in range(words.repeats)
        ]
        _show(f"us a step, accum {accum}", rounds)
    nitro, by_hand = evaluation()
    _show("ms a pass, five metrics", [(by_hand(), by_hand(), nitro()) for _ in range(5 * words.repeats)])


def _show(name: str, rounds: list[tuple[float, ...]]) -> None:
    hand, again, task = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(task / hand for hand, _, task in rounds)
    control = statistics.median(again / hand for hand, again, _ in rounds)
    print(f"{name:28}{hand:10.1f}{again:15.1f}{task:10.1f}{ratio:8.2f}{control:9.2f}", flush=True)


if __name__ == "__main__":
    main()
