"""Framework time per step above a bare jitted call: a trivial step on a six-leaf tree, logging on.

Prints microseconds per step, minimum and median over interleaved repeats: the bare call, the bare call again as a
control, and nitro's loop over resident and over streamed data. With `--profile` it also says where the host's time of a
streamed step goes, without producer threads; the profiler makes everything slower, so only the shares mean something.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
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

from nitro_cli import ArrayBatches, Experiment, Nitro, NoPrefetch, set_progress_reporter

BATCH = 8


class Trivial(Experiment):
    """Six leaves, next to no arithmetic."""

    batches: int = 1000
    resident: bool = True
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        """`batches` batches of eight rows."""
        x = np.ones((self.batches * BATCH, 4), np.float32)
        return {"train": ArrayBatches({"x": x}, BATCH, resident=self.resident)}

    def build_model(self, rng: jax.Array) -> Any:
        """Six vectors."""
        return model, {f"w{i}": jnp.ones(4) for i in range(6)}, {}

    def optimizer(self, group: str) -> Any:
        """Plain SGD."""
        return optax.sgd

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        """The sum of the leaves times the input."""
        return model(params, state, x)

    def loss(self, outputs: jax.Array) -> jax.Array:
        """A mean of squares."""
        return jnp.mean(outputs**2)


def model(params: Any, state: Any, x: jax.Array) -> Any:
    """`x` times the sum of all leaves."""
    return x * sum(params.values()), state


def bare(steps: int) -> Callable[[], float]:
    """The loop by hand: one jitted call per step, the loss read one step late."""

    @jax.jit
    def step(params: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((x * sum(p.values())) ** 2))(params)
        return {name: w - 1e-3 * grads[name] for name, w in params.items()}, loss

    x = jnp.ones((BATCH, 4))

    def run() -> float:
        params = {f"w{i}": jnp.ones(4) for i in range(6)}
        params, late = step(params, x)
        float(late)
        start = time.perf_counter()
        for _ in range(steps):
            params, loss = step(params, x)
            float(late)
            late = loss
        float(late)
        return (time.perf_counter() - start) / steps * 1e6

    return run


def framework(steps: int, resident: bool) -> Callable[[], float]:
    """nitro's loop; the first epoch compiles, the second is timed from phase to phase."""
    folder = tempfile.mkdtemp()

    def run() -> float:
        handle = Nitro(Trivial(batches=steps, resident=resident), max_epochs=2, run_dir=folder)
        times = _epoch_times(handle)
        return times[1] / steps * 1e6

    return run


def _epoch_times(handle: Nitro) -> list[float]:
    """Wall seconds of each epoch's training stretch."""
    clock = EpochClock()
    previous = set_progress_reporter(clock)
    try:
        handle.train()
    finally:
        set_progress_reporter(previous)
    return [wall for wall, _ in clock.train]


class Inline(Trivial):
    """All of a step's work in the loop's own thread, where a profiler sees it."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        """The same batches, not prefetched."""
        return {name: NoPrefetch(source) for name, source in super().build_data(dist).items()}


class ProfiledClock(EpochClock):
    """Profiles each training stretch but the first, which compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.profile = cProfile.Profile()

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts."""
        super().begin(label, total, epoch, max_epochs)
        if label == "train" and epoch > 1:
            self.profile.enable()

    def end(self, values: Any) -> None:
        """It is over."""
        self.profile.disable()
        super().end(values)


def print_profile(steps: int) -> None:
    """The functions of a streamed step that take most of its time."""
    clock = ProfiledClock()
    previous = set_progress_reporter(clock)
    try:
        with tempfile.TemporaryDirectory() as folder:
            Nitro(Inline(batches=steps, resident=False), max_epochs=4, run_dir=folder).train()
    finally:
        set_progress_reporter(previous)
    stats: Any = pstats.Stats(clock.profile)
    print(f"\n{'share of a streamed step':28}{'itself':>10}{'with calls':>12}   percent")
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:16]
    for (file, line, function), (_, _, own, cumulative, _) in rows:
        where = f"{function}" if line == 0 else f"{file.rsplit('/', 1)[-1]}:{function}"
        print(f"{where[-28:]:28}{100 * own / stats.total_tt:10.1f}{100 * cumulative / stats.total_tt:12.1f}")


def main() -> None:
    """Run the contestants in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="also where a streamed step's time goes")
    options = parser.parse_args()
    contestants = {
        "bare jitted call": bare(options.steps),
        "bare again (control)": bare(options.steps),
        "nitro, resident": framework(options.steps, True),
        "nitro, streamed": framework(options.steps, False),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.repeats):
        for name, run in contestants.items():
            # What earlier contestants left in memory must cost nobody time.
            gc.collect()
            gc.freeze()
            times[name].append(run())
    reference = statistics.median(times["bare jitted call"])
    print(f"{'':24}{'min':>10}{'median':>10}{'above bare':>12}   microseconds per step")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:24}{min(found):10.1f}{median:10.1f}{median - reference:12.1f}")
    if options.profile:
        print_profile(options.steps)


if __name__ == "__main__":
    main()
