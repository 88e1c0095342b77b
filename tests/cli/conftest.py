"""Running the command line, in this process and as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nitro_cli.cli.app import app

Process = subprocess.CompletedProcess[str]
REPOSITORY = Path(__file__).resolve().parents[2]

BLOCK_JAX = textwrap.dedent(
    """
    import os
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in os.environ["NITRO_TEST_BLOCKED"].split():
                raise ImportError(f"{name} must not be imported here")

    sys.meta_path.insert(0, Refuse())
    """
)


PROBE = textwrap.dedent(
    '''
    """A line fitted to points: an experiment that can be told to fail in every way."""

    import errno
    import os
    import signal
    import threading

    import jax.numpy as jnp
    import numpy as np

    from nitro_cli import ArrayBatches, Device, Experiment, GraphConst, Mean


    class Probe(Experiment):
        """Fits a line."""

        width: GraphConst[int] = 2
        """How many inputs a point has."""

        noise: Device[float] = 0.0
        """Added to every output."""

        trouble: str = ""
        """What the validation of epoch `when` does: a signal's name, or an error's."""

        when: int = 2
        """The epoch of the trouble."""

        max_epochs = 3
        learning_rate = 0.1
        monitor = ("mse", "min")

        def build_data(self, dist):
            rng = np.random.default_rng(0)
            x = rng.normal(size=(24, self.width)).astype(np.float32)
            y = x.sum(-1)
            if self.trouble == "nans":
                y[8] = np.nan
            print("a hook prints", flush=True)
            while self.trouble == "wait":
                threading.Event().wait(0.05)
            return {name: ArrayBatches({"x": x, "y": y}, batch_size=8) for name in ("train", "val", "test")}

        def build_model(self, rng):
            return _line, {"w": jnp.zeros(self.width), "b": jnp.zeros(())}, {}

        def forward(self, model, params, state, *, x):
            outputs, state = model(params, state, x)
            return outputs + self.noise, state

        def loss(self, outputs, *, y):
            return jnp.mean((outputs - y) ** 2)

        def metrics(self, outputs, *, y):
            return {"mse": Mean(((outputs - y) ** 2).sum(), len(y))}

        def finalize_metrics(self, acc, split):
            if split == "val":
                type(self).validated += 1
                if type(self).validated == self.when:
                    _cause(self.trouble)
            return dict(acc)


    Probe.validated = 0


    def _line(params, state, x, *, train, key):
        return x @ params["w"] + params["b"], state


    def _cause(trouble):
        if trouble.startswith("SIG"):
            signal.raise_signal(getattr(signal, trouble))
        elif trouble == "raise":
            raise ValueError("a mistake in a hook")
        elif trouble == "memory":
            raise MemoryError
        elif trouble == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")
    '''
)

PRESETS = {
    "short": 'description = "One epoch"\n[fields]\nmax_epochs = 1\n',
    "wide": 'extends = "short"\n[fields]\nwidth = 3\n\n'
    '[schedules]\nlearning_rate = { kind = "cosine", init_value = 0.1 }\n',
}


def write_probe(folder: Path) -> None:
    """Put the experiment `Probe` and its presets into a working directory."""
    (folder / "experiments").mkdir()
    (folder / "experiments" / "probe.py").write_text(PROBE)
    (folder / "presets" / "Probe").mkdir(parents=True)
    for name, text in PRESETS.items():
        (folder / "presets" / "Probe" / f"{name}.toml").write_text(text)


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No plugins, no colors, one program cache for all tests of the process."""
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A working directory with the experiment `Probe`."""
    write_probe(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with `Probe` and one finished run of it; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    write_probe(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NITRO_NO_PLUGINS", "1")
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        result = CliRunner().invoke(app, ["train", "Probe", "--preset", "wide", "--max-epochs", "3"], prog_name="nitro")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of the working directory with a finished run, to be changed at will."""
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def nitro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call `nitro` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, **keywords: Any) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], prog_name="nitro", **keywords)

    return call


@pytest.fixture
def nitro_json(nitro: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Call `nitro ... --json` and return the document."""

    def call(*words: str, code: int = 0) -> dict[str, Any]:
        result = nitro(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return call


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a child process that finds nitro; `block_jax=True` makes JAX unimportable in it."""

    def make(*, block_jax: bool = False, also: str = "") -> dict[str, str]:
        paths = [str(REPOSITORY)]
        blocked = f"jax jaxlib orbax optax flax {also}"
        if block_jax:
            site = tmp_path / "block-jax"
            site.mkdir(exist_ok=True)
            (site / "sitecustomize.py").write_text(BLOCK_JAX)
            paths.insert(0, str(site))
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", "COLUMNS": "80"} | {
            "NITRO_TEST_BLOCKED": blocked
        }

    return make


@pytest.fixture
def process(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Callable[..., Process]:
    """Run `python -m nitro_cli` as a process; `block_jax=True` makes JAX unimportable in it."""

    def call(*words: str, block_jax: bool = False, cwd: Path | None = None, **keywords: Any) -> Process:
        env = environment(block_jax=block_jax) | keywords.pop("env", {})
        return subprocess.run(
            [sys.executable, "-m", "nitro_cli", *map(str, words)],
            capture_output=True, text=True, timeout=300, cwd=cwd or tmp_path, env=env, **keywords,
        )  # fmt: skip

    return call
