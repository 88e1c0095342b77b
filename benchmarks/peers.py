"""The same jobs in nitro, in loops written by hand, and in other frameworks: speed, memory, time to the first step.

    python benchmarks/peers.py                            everything: an hour and more on two cores
    python benchmarks/peers.py speed --jobs mlp           one table
    python benchmarks/peers.py speed --only 'by hand' 'nitro, resident' --repeats 15

Speed: the contestants take turns in one process, the order turned round every time, and the ratios are taken within a
turn. An epoch counts from before its order is drawn until its last loss is on the host; the first, which compiles, does
not count. Memory and time to the first step: a process each. The tables are Markdown. A contestant whose library is not
installed is listed as such; one that learns another loss than the others ends the script with an error.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, JOBS, REFERENCE, Contestant, Epoch, Job, Watch

TABLES = ("speed", "memory", "start")
LIBRARIES = ("jax", "optax", "flax", "keras", "torch", "lightning")
UNTRAINED = {"mlp": math.log(10), "cnn": math.log(10), "transformer": math.log(64)}
AGREEMENT = 0.1
"""How far epoch losses may lie from the reference's, as a share of the untrained loss. Only shuffling differs, and the
first weights of those that draw them with JAX."""


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print one table."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row + [''] * (len(head) - len(row)))} |", flush=True)


def spread(values: list[float], digits: int) -> list[str]:
    """Minimum, median and maximum."""
    return [f"{f(values):.{digits}f}" for f in (min, statistics.median, max)]


def split(job: Job, only: list[str]) -> tuple[list[Contestant], list[list[str]]]:
    """Who takes part in a job, and a row for each that does not."""
    chosen = [CONTESTANTS[name] for name in dict.fromkeys([REFERENCE, *only])]
    absent = {c.name: why for c in chosen if (why := c.absent(job)) is not None}
    return [c for c in chosen if c.name not in absent], [[name, why] for name, why in absent.items()]


def speed(job: Job, options: argparse.Namespace) -> list[str]:
    """Steps per second over the reference's; returns what disagrees."""
    present, rows = split(job, options.only)
    data = job.data()
    runs = {c.name: c.load() for c in present}
    gc.freeze()
    found: dict[str, list[list[Epoch]]] = {c.name: [] for c in present}
    for turn in range(options.repeats):
        for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
            gc.collect()
            watch = Watch()
            runs[name](job, data, options.epochs, watch)
            found[name].append(watch.epochs)

    def per_step(name: str, what: str) -> list[float]:
        return [statistics.median(getattr(e, what) for e in run[1:]) / job.steps * 1e6 for run in found[name]]

    for name in found:
        wall, cpu = per_step(name, "wall"), per_step(name, "cpu")
        ratios = [hand / own for hand, own in zip(per_step(REFERENCE, "wall"), wall, strict=True)]
        busy = statistics.median(own / hand for hand, own in zip(per_step(REFERENCE, "cpu"), cpu, strict=True))
        median = f"{statistics.median(wall):.0f}"
        rows.append([name, median, *spread(ratios, 2), f"{busy:.2f}", f"{found[name][0][-1].loss:.3f}"])
    order = list(CONTESTANTS)
    rows.sort(key=lambda row: order.index(row[0]))
    title = f"Speed, {job.name}: batch {job.batch}, {job.steps} steps an epoch, {options.repeats} turns"
    table(title, ["", "us/step", "ratio min", "median", "max", "cpu per step", "loss"], rows)
    return disagreeing(job, {name: runs[0] for name, runs in found.items()})


def disagreeing(job: Job, epochs: dict[str, list[Epoch]]) -> list[str]:
    """A sentence for each contestant that did not learn what the reference did."""
    reference = epochs[REFERENCE]
    allowed = AGREEMENT * UNTRAINED[job.name]
    problems = []
    for name, own in epochs.items():
        losses = [round(e.loss, 4) for e in own]
        expected = [round(e.loss, 4) for e in reference]
        close = [abs(a - b) <= allowed for a, b in zip(losses, expected, strict=False)]
        if len(losses) != len(expected) or not all(close):
            problems.append(f"{job.name}: {name} has losses {losses}, {REFERENCE} {expected}")
    return problems


def memory(job: Job, options: argparse.Namespace) -> list[str]:
    """Peak resident memory of a process that trains two epochs, compiling included."""
    present, rows = split(job, options.only)
    peaks: dict[str, list[float]] = {c.name: [] for c in present}
    imports: dict[str, float] = {}
    for _ in range(options.processes):
        for c in present:
            found = child("memory", c, job, {"NITRO_CACHE_DIR": "off"})
            peaks[c.name].append(found["peak"])
            imports[c.name] = found["imported"]
    for name, found in peaks.items():
        ratio = statistics.median(own / hand for own, hand in zip(found, peaks[REFERENCE], strict=True))
        rows.append([name, f"{statistics.median(found):.0f}", f"{ratio:.2f}", f"{imports[name]:.0f}"])
    table(f"Memory, {job.name}, MB", ["", "peak", "over by hand", "after imports"], rows)
    return []


def start(job: Job, options: argparse.Namespace) -> list[str]:
    """Seconds from process start until the first step's loss is on the host: no program cache, and a filled one."""
    present, rows = split(job, options.only)
    times: dict[str, tuple[list[float], list[float]]] = {c.name: ([], []) for c in present}
    for _ in range(options.processes):
        for c in present:
            with tempfile.TemporaryDirectory() as folder:
                cache = {"NITRO_CACHE_DIR": folder, "JAX_COMPILATION_CACHE_DIR": folder}
                if c.module == "with_nitro":
                    del cache["JAX_COMPILATION_CACHE_DIR"]
                else:
                    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
                    cache["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
                for found in times[c.name]:
                    found.append(child("start", c, job, cache)["first"])
    for name, (cold, warm) in times.items():
        rows.append([name, *spread(cold, 1), *spread(warm, 2)])
    head = ["", "cold min", "median", "max", "warm min", "median", "max"]
    table(f"Time to the first step, {job.name}, seconds", head, rows)
    return []


def child(what: str, contestant: Contestant, job: Job, env: dict[str, str]) -> dict[str, float]:
    """One contestant in a process of its own."""
    words = [sys.executable, __file__, "--child", what, contestant.name, job.name, str(job.steps)]
    env = {**os.environ, **env, "STARTED": str(time.time())}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contestant.name}, {job.name}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def run_child(what: str, name: str, job_name: str, steps: str) -> None:
    """What the process of `child` does."""
    job = JOBS[job_name].of_steps(int(steps))
    run = CONTESTANTS[name].load()
    imported = resident_mb("VmRSS")

    def first() -> None:
        os.write(1, json.dumps({"first": time.time() - float(os.environ["STARTED"])}).encode() + b"\n")
        os._exit(0)

    run(job, job.data(), 2, Watch(first if what == "start" else None))
    print(json.dumps({"peak": resident_mb("VmHWM"), "imported": imported}))


def resident_mb(field: str) -> float:
    """Resident memory of this process, now (VmRSS) or at its peak (VmHWM). Linux: a child's `ru_maxrss` would begin
    with its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def versions() -> str:
    """What is compared with what."""
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{library} not installed")
    return f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, " + ", ".join(found)


def main() -> None:
    """Print the tables asked for."""
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=TABLES, metavar="table", help=" ".join(TABLES))
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--only", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=5, help="turns of the speed table")
    parser.add_argument("--processes", type=int, default=3, help="processes per figure of the others")
    parser.add_argument("--epochs", type=int, default=3, help="per turn; the first does not count")
    parser.add_argument("--steps", type=int, help="steps per epoch, instead of the job's own; a multiple of 50")
    options, _ = parser.parse_known_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"unknown table {sorted(unknown)}: there are {', '.join(TABLES)}")
    os.environ["NITRO_CACHE_DIR"] = "off"
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads spin, ten times slower beside other work
    print(versions())
    problems: list[str] = []
    measures: dict[str, Any] = {"speed": speed, "memory": memory, "start": start}
    for what in options.tables:
        for name in options.jobs:
            job = JOBS[name] if options.steps is None else JOBS[name].of_steps(options.steps)
            problems += measures[what](job, options)
    if problems:
        raise SystemExit("\nnot the same work:\n" + "\n".join(problems))


if __name__ == "__main__":
    main()
