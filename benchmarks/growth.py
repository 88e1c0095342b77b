"""Whether a long run stays as fast and as small: 100,000 trivial steps with the log, the history and checkpoints on.

A hundred epochs of a thousand steps. Per window of them: microseconds per step inside an epoch, milliseconds between
two (history, checkpoint, the next order), the process's resident memory at the end, and the bytes that the run's text
files have gained per step. `--epochs 1 --steps 100000` is one long epoch instead.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from step_overhead import Trivial

from nitro_cli import Checkpointer, Last, Nitro, set_progress_reporter

POINTS = (1, 2, 5, 10, 20, 50, 100)
SUFFIXES = (".jsonl", ".json", ".toml")


class Long(Trivial):
    """The trivial step, with a checkpoint after every epoch."""

    checkpointer = Checkpointer(keep=(Last(2),))


@dataclass(frozen=True)
class Mark:
    """After a hundredth of the run: seconds inside epochs and between them, memory (MB), text files (bytes)."""

    steps: int
    inside: float
    between: float
    memory: float
    text: int


def written(folder: Path) -> int:
    """Bytes of log, history and manifest; the writer's temporary files may be gone by the time they are looked at."""
    total = 0
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.suffix in SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                total += file.stat().st_size
    return total


class Marks:
    """A progress reporter that measures at the end of every `every` steps."""

    def __init__(self, folder: Path, every: int) -> None:
        self.marks: list[Mark] = []
        self._folder, self._every = folder, every
        self._steps = 0
        self._training = False
        self._inside = self._between = 0.0
        self._start = self._stop = time.perf_counter()

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch begins."""
        self._training = label == "train"
        if self._training:
            self._start = time.perf_counter()
            self._between += self._start - self._stop

    def end(self, values: Any) -> None:
        """It is over."""
        if self._training:
            self._stop = time.perf_counter()
            self._inside += self._stop - self._start
        self._training = False

    def step(self, n: int, values: Any) -> None:
        """Steps are finished."""
        before, self._steps = self._steps, self._steps + n
        if self._training and before // self._every != self._steps // self._every:
            inside = self._inside + time.perf_counter() - self._start
            self.marks.append(Mark(self._steps, inside, self._between, resident_mb(), written(self._folder)))
            self._inside = self._between = 0.0
            self._start = time.perf_counter()

    def nothing(self, *args: Any) -> None:
        """Nothing to draw."""

    phase = note = line = done = nothing


def resident_mb() -> float:
    """Resident memory of this process (Linux)."""
    for row in Path("/proc/self/status").read_text().splitlines():
        if row.startswith("VmRSS"):
            return int(row.split()[1]) / 1024
    raise SystemExit("/proc/self/status has no VmRSS")


def main() -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000, help="per epoch")
    parser.add_argument("--streamed", action="store_true", help="batches from the host instead of resident data")
    options, _ = parser.parse_known_args()
    total = options.epochs * options.steps
    every = total // 100
    with tempfile.TemporaryDirectory() as text:
        reporter = Marks(Path(text), every)
        previous = set_progress_reporter(reporter)
        try:
            Nitro(
                Long(batches=options.steps, resident=not options.streamed), max_epochs=options.epochs, run_dir=text
            ).train()
        finally:
            set_progress_reporter(previous)
    marks = reporter.marks
    print(f"{total} steps, {options.epochs} epochs, {'streamed' if options.streamed else 'resident'}\n")
    print("| steps | us/step | between epochs, ms | memory, MB | bytes per step |\n|" + " --- |" * 5)
    before = 0
    for point in POINTS:
        window = marks[before:point]
        inside = statistics.median(m.inside for m in window) / every * 1e6
        between = statistics.median(m.between for m in window) * 1e3
        base = marks[before - 1] if before else Mark(0, 0, 0, 0, 0)
        written = (window[-1].text - base.text) / (window[-1].steps - base.steps)
        print(f"| {window[-1].steps} | {inside:.1f} | {between:.1f} | {window[-1].memory:.1f} | {written:.0f} |")
        before = point


if __name__ == "__main__":
    main()
