"""Wall and CPU seconds of `nitro analyze` on a prediction file of 10,000 rows and 10 classes."""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nitro_cli.analysis import PredictionMeta, TaskMeta, meta_array

CASES = (["--json"], ["--json", "--slice", "class", "--slice", "age=30,60"], [])


def make_predictions(path: Path, rows: int, classes: int) -> None:
    """A file as `nitro predict` writes it, with one further field."""
    rng = np.random.default_rng(0)
    target = rng.integers(0, classes, rows)
    logits = (3 * np.eye(classes)[target] + 2 * rng.normal(size=(rows, classes))).astype(np.float32)
    meta = PredictionMeta(split="test", task=TaskMeta(kind="categorical", output="outputs"))
    ages = rng.integers(0, 90, rows)
    np.savez(path, ids=np.arange(rows), outputs=logits, target=target, age=ages, meta=meta_array(meta))


def main() -> None:
    """Time each case in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_predictions(folder / "test.npz", options.rows, options.classes)
        times: dict[str, list[tuple[float, float]]] = {" ".join(words): [] for words in CASES}
        for _ in range(options.repeats + 1):
            for words in CASES:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                start = time.perf_counter()
                command = [sys.executable, "-m", "nitro_cli", "analyze", "test.npz", *words]
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                wall = time.perf_counter() - start
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                times[" ".join(words)].append((wall, cpu))
    print(f"{'nitro analyze test.npz ...':44}{'wall min':>10}{'median':>9}{'max':>8}{'cpu median':>12}   seconds")
    for name, found in times.items():
        walls = [wall for wall, _ in found[1:]]
        cpu = statistics.median(cpu for _, cpu in found[1:])
        print(f"{name or '(tables)':44}{min(walls):10.2f}{statistics.median(walls):9.2f}{max(walls):8.2f}{cpu:12.2f}")


if __name__ == "__main__":
    main()
