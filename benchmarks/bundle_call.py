"""Size of a bundle, and the time of one call beside the handle's own predict on the same inputs.

Both get the batch of floats that `forward` takes and give host arrays. Contestants run in turn, in batches of calls;
predict runs twice, against itself as a control. Ratios are bundle time over predict time, pair by pair.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from nitro_experiments.mnist import MnistCNN, MnistMLP

from nitro_cli import ExportSpec, Nitro, load_bundle


class PlainMLP(MnistMLP):
    """The perceptron with the batch's own floats on the wire, as predict takes them."""

    def export_inputs(self) -> list[ExportSpec]:
        """Rows of 784 values in 0..1."""
        return [ExportSpec("image", "float32", (1, 784))]

    def export_preprocess(self, image: jax.Array) -> dict[str, jax.Array]:
        """The batch as it is."""
        return {"image": image}


class PlainCNN(MnistCNN):
    """The convolutional network in the same way."""

    def export_inputs(self) -> list[ExportSpec]:
        """Images with one channel."""
        return [ExportSpec("image", "float32", (1, 28, 28, 1))]

    def export_preprocess(self, image: jax.Array) -> dict[str, jax.Array]:
        """The batch as it is."""
        return {"image": image}


def timed(call: Callable[[], Any], calls: int) -> float:
    """Seconds per call over `calls` in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(cls: type[MnistMLP] | type[MnistCNN], size: int, rounds: int, calls: int, folder: Path) -> list[str]:
    """One row of the table."""
    nitro = Nitro(cls(), data={})
    image = np.random.default_rng(0).random((size, *nitro.experiment.export_inputs()[0].shape[1:]), dtype=np.float32)
    path = nitro.export(dir=folder, name=f"{cls.__name__}-{size}", batch_sizes=(size,))
    bundle = load_bundle(path, raw=True)
    contestants = {
        "predict": lambda: nitro.predict({"image": image}),
        "bundle": lambda: bundle(image=image),
        "again": lambda: nitro.predict({"image": image}),
    }
    for call in contestants.values():
        timed(call, 3)
    spent: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        names = list(contestants) if turn % 2 == 0 else list(contestants)[::-1]
        for name in names:
            spent[name].append(timed(contestants[name], calls))
    ratio = statistics.median(b / p for b, p in zip(spent["bundle"], spent["predict"], strict=True))
    control = statistics.median(b / p for b, p in zip(spent["again"], spent["predict"], strict=True))
    held = sum(file.stat().st_size for file in path.iterdir())
    weights = (path / "weights.safetensors").stat().st_size
    times = [f"{1e6 * statistics.median(spent[name]):.0f}" for name in ("predict", "bundle")]
    return [
        cls.__name__,
        str(size),
        *times,
        f"{ratio:.2f}",
        f"{control:.2f}",
        f"{held / 1e3:.0f}",
        f"{weights / 1e3:.0f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--calls", type=int, default=50)
    options = parser.parse_args()
    head = ["model", "batch", "predict us", "bundle us", "ratio", "control", "bundle kB", "weights kB"]
    print("  ".join(f"{word:>10}" for word in head))
    with tempfile.TemporaryDirectory() as folder:
        for cls in (PlainMLP, PlainCNN):
            for size in (1, 32):
                row = measure(cls, size, options.repeats, options.calls, Path(folder))
                print("  ".join(f"{word:>10}" for word in row), flush=True)


if __name__ == "__main__":
    main()
