"""Memory stays flat however long a run is: no step leaves anything behind."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Nitro, Prefetch, set_progress_reporter
from tests.tiny import Bare

STEPS, EPOCHS = 500, 20
"""Steps of an epoch and epochs: ten thousand steps in all."""
GROWTH = 4 * 2**20
"""Bytes: a row of history is a few hundred each epoch, allocators keep some slack."""


def resident_bytes() -> int:
    """Memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Long(Bare):
    """A tiny step with its line in the log; no checkpoints, whose library fills caches for the first twenty."""

    checkpointer = None
    max_epochs = EPOCHS
    log_every_n_steps = 1


class Gauge:
    """A reporter that notes memory at the start of each epoch's training."""

    def __init__(self) -> None:
        self.resident: list[int] = []
        self.arrays: list[int] = []

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        if label == "train":
            gc.collect()
            self.resident.append(resident_bytes())
            self.arrays.append(len(jax.live_arrays()))

    def step(self, n: int, values: Mapping[str, float] | None) -> None: ...

    def end(self, values: Mapping[str, Any] | None) -> None: ...

    def phase(self, name: str | None) -> None: ...

    def note(self, text: str | None) -> None: ...

    def line(self, text: str) -> None: ...

    def done(self, text: str) -> None: ...


HELD = """
import gc, sys
import numpy as np
from nitro_cli import ArrayBatches, Nitro, set_progress_reporter
from tests.run.test_memory import Long, resident_bytes
set_progress_reporter(None)

def rows(n):  # ten thousand numbers a row, of which the model reads six
    arrays = {"x": np.ones((n, 6), np.float32), "wide": np.ones((n, 10_000), np.float32)}
    return ArrayBatches({**arrays, "y": np.zeros(n, np.int32)}, 8)

class Wide(Long):
    max_epochs = 1
    def forward(self, model, params, state, *, x, wide):
        return model(params, state, x + wide[:, :6])

Nitro(Wide(), data={"train": rows(16)}, logger=None, checkpointer=None).train()
gc.collect()
before = resident_bytes()
nitro = Nitro(Wide(), data={"train": rows(4096)}, logger=None, checkpointer=None)
nitro.train()
gc.collect()
print((resident_bytes() - before) / (4096 * 40_000))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from Linux's /proc")
def test_data_that_stays_on_a_cpu_is_held_once(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HELD]
    found = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert 0.9 < float(found.stdout.split()[-1]) < 1.4


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from Linux's /proc")
@pytest.mark.parametrize("resident", [True, False])
def test_ten_thousand_steps_hold_no_more_than_the_first_thousand(resident: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(8 * STEPS, 6)).astype(np.float32), "y": np.zeros(8 * STEPS, np.int32)}
    source = ArrayBatches(arrays, 8, shuffle=True)
    gauge = Gauge()
    previous = set_progress_reporter(gauge)
    try:
        data = {"train": source if resident else Prefetch(source), "val": ArrayBatches(arrays, 400)}
        nitro = Nitro(Long(), data=data, run_dir=tmp_path).train()
    finally:
        set_progress_reporter(previous)
    assert nitro.step == STEPS * EPOCHS
    assert gauge.arrays[-1] == gauge.arrays[2]
    assert gauge.resident[-1] - gauge.resident[2] < GROWTH
