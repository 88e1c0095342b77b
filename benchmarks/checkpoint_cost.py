"""What a checkpoint per epoch costs the step loop: python benchmarks/checkpoint_cost.py [--epochs N]

Trains the convolutional network of `MnistCNN` (0.2 million parameters, batch normalization, dropout) with Adam on made
data, 60 steps of 100 images an epoch where MNIST itself has 550, in turn with a checkpoint after every epoch and with
none. Two figures: the time from asking for a checkpoint until the loop goes on (the copy, the hand-over, and waiting
for the write before where that is not through), and the whole epochs side by side, which also hold what the writing
thread takes from the processor. The first epoch of each run, which compiles, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from nitro_experiments.mnist import MnistCNN

from nitro_cli import ArrayBatches, Checkpointer, Last, Nitro, set_progress_reporter

STEPS = 60
TARGET_PERCENT = 2.0


class Network(MnistCNN):
    """The convolutional network of the shipped experiment, without validation: an epoch is its steps."""

    logger = None
    monitor = None
    learning_rate = 1e-3

    def build_data(self, dist: Any) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        images = rng.normal(size=(STEPS * self.batch_size, 28, 28, 1)).astype(np.float32)
        labels = rng.integers(0, 10, STEPS * self.batch_size).astype(np.int32)
        return {"train": ArrayBatches({"image": images, "label": labels}, self.batch_size, shuffle=True)}


class _Stopwatch:
    """A progress reporter and phase monitor: when epochs begin, and how long the loop is held for a checkpoint."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.held: list[float] = []
        self._asked: float | None = None

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        if label == "train":
            self.starts.append(time.perf_counter())

    def ignore(self, *args: Any) -> None:
        pass

    step = end = phase = note = line = done = ignore

    def __call__(self, phase: Any, step: Any, epoch: Any, info: Any) -> None:
        now = time.perf_counter()
        if self._asked is not None:
            self.held.append(now - self._asked)
        self._asked = now if phase.name == "Checkpointing" else None


def _epochs(folder: Path, epochs: int, checkpointer: Checkpointer | None) -> tuple[list[float], list[float]]:
    """Seconds of each epoch after the first but the last, and what the loop was held for in them."""
    watch = _Stopwatch()
    set_progress_reporter(watch)
    nitro = Nitro(Network(), run_dir=str(folder), max_epochs=epochs, checkpointer=checkpointer)
    nitro.register_phase_monitor(watch)
    nitro.train()
    whole = [after - before for before, after in zip(watch.starts[1:-1], watch.starts[2:], strict=True)]
    return whole, watch.held[1:-1]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6, help="per run; the first and the last are not counted")
    parser.add_argument("--repeats", type=int, default=3, help="runs with and without checkpoints")
    options = parser.parse_args()
    epochs = options.epochs
    with_them: list[float] = []
    without: list[float] = []
    held: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeats):
            plain, _ = _epochs(Path(folder) / f"plain-{number}", epochs, None)
            saved, waits = _epochs(Path(folder) / f"saved-{number}", epochs, Checkpointer(keep=(Last(1),)))
            without += plain
            with_them += saved
            held += waits
    epoch, plain_epoch = statistics.median(with_them), statistics.median(without)
    share = 100 * statistics.median(held) / epoch
    print(f"one epoch of {STEPS} steps: {plain_epoch:.3f} s without checkpoints, {epoch:.3f} s with one per epoch")
    print(f"the loop is held {1000 * statistics.median(held):.1f} ms per checkpoint: {share:.2f} % of an epoch")
    print(f"epochs side by side: {100 * (epoch / plain_epoch - 1):+.2f} % (the target is {TARGET_PERCENT} %)")


if __name__ == "__main__":
    main()
