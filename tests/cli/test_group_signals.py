"""Signals to the whole process group, as a terminal and a scheduler send them, while a loader's processes work."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.errors import ExitCode

EXPERIMENT = textwrap.dedent(
    """
    import multiprocessing

    import jax.numpy as jnp
    import numpy as np

    from nitro_cli import Experiment


    def batch(index):
        return {"x": np.full((4, 1), index % 7, np.float32)}


    class Pooled:
        '''Batches that a pool of processes builds.'''

        def __len__(self):
            return 40

        def __iter__(self):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                yield from pool.imap(batch, range(40))


    class Samples:
        def __len__(self):
            return 160

        def __getitem__(self, index):
            return {"x": np.full((1,), index % 7, np.float32)}


    class Workers(Experiment):
        max_epochs: int = 100_000
        loader: str = "pool"

        def build_data(self, dist):
            if self.loader == "pool":
                return {"train": Pooled()}
            from torch.utils.data import DataLoader

            return {name: DataLoader(Samples(), batch_size=4, num_workers=2) for name in ("train", "val")}

        def build_model(self, rng):
            return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

        def forward(self, model, params, state, *, x):
            return model(params, state, x)

        def loss(self, outputs):
            return jnp.mean(outputs**2)
    """
)

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize(
    ("loader", "number", "code"),
    [
        pytest.param("pool", signal.SIGTERM, ExitCode.STOPPED, id="pool-SIGTERM"),
        pytest.param("torch", signal.SIGINT, ExitCode.INTERRUPTED, id="torch-SIGINT", marks=needs_torch),
        pytest.param("pool", signal.SIGINT, ExitCode.INTERRUPTED, id="pool-SIGINT", marks=pytest.mark.slow),
        pytest.param("pool", signal.SIGUSR1, ExitCode.STOPPED, id="pool-SIGUSR1", marks=pytest.mark.slow),
        pytest.param(
            "torch", signal.SIGTERM, ExitCode.STOPPED, id="torch-SIGTERM", marks=[needs_torch, pytest.mark.slow]
        ),
    ],
)
def test_a_signal_to_run_and_workers_alike_ends_with_the_state_saved(
    loader: str, number: signal.Signals, code: ExitCode, environment: Any, tmp_path: Path
) -> None:
    (tmp_path / "workers.py").write_text(EXPERIMENT)
    child = subprocess.Popen(
        [sys.executable, "-m", "nitro_cli", "train", "workers.py:Workers", "--set", f"loader={loader}"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stderr is not None
        before = ""
        for line in child.stderr:
            before += line
            if line.startswith("epoch 1/"):
                break
        os.killpg(child.pid, number)
        _, told = child.communicate(timeout=120)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    assert child.returncode == code, before + told
    assert "the state is saved" in told
    assert "Traceback" not in told
    assert "'forkserver'" in before
    manifest = json.loads((tmp_path / "runs" / "Workers" / "manifest.json").read_text())
    assert [run["status"] for run in manifest["runs"].values()] == ["requested"]
