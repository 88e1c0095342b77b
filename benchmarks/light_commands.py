"""Wall and CPU seconds of the commands that must answer at once, on a run directory with 1,000 checkpoints."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = "0a1b2c3d"
COMMANDS = (["--help"], ["list"], ["runs", "runs/Made"], ["history", "runs/Made"])


def make_runs(folder: Path, count: int) -> None:
    """A manifest with `count` checkpoints and a history of as many rows; no arrays."""
    root = folder / "runs" / "Made"
    (root / RUN / "checkpoints").mkdir(parents=True)
    entries, rows = [], []
    for epoch in range(1, count + 1):
        path = f"{RUN}/checkpoints/epoch-{epoch:04d}-step-{epoch * 10}-acc=0.5"
        (root / path).mkdir()
        entries.append(
            {"path": path, "run": RUN, "epoch": epoch, "step": epoch * 10, "score": epoch / count, "metric": "acc"}
            | {"mode": "max", "written": 1.0 * epoch, "resume_point": False, "stop_reason": None, "parent": None}
        )
        rows.append({"epoch": epoch, "step": epoch * 10, "train_loss": 1 / epoch, "acc": epoch / count})
    run = {"experiment": "Made", "preset": None, "status": "completed", "parent": None, "seed": 42}
    run |= {"created": 1.0, "written": 2.0, "displaced": []}
    document = {"format": 1, "framework": "0.1.0", "runs": {RUN: run}, "entries": entries}
    (root / "manifest.json").write_text(json.dumps(document))
    (root / RUN / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Time each command in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--checkpoints", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_runs(folder, options.checkpoints)
        times: dict[str, list[tuple[float, float]]] = {" ".join(words): [] for words in COMMANDS}
        for _ in range(options.repeats + 1):
            for words in COMMANDS:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                start = time.perf_counter()
                command = [sys.executable, "-m", "nitro_cli", *words]
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                wall = time.perf_counter() - start
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                times[" ".join(words)].append((wall, cpu))
    print(f"{'nitro ...':22}{'wall min':>10}{'median':>9}{'max':>8}{'cpu median':>12}   seconds")
    for name, found in times.items():
        walls = [wall for wall, _ in found[1:]]
        cpu = statistics.median(cpu for _, cpu in found[1:])
        print(f"{name:22}{min(walls):10.2f}{statistics.median(walls):9.2f}{max(walls):8.2f}{cpu:12.2f}")


if __name__ == "__main__":
    main()
