"""Running the command line, in this process and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nitro_cli.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[2]

BLOCK_JAX = textwrap.dedent(
    """
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {"jax", "jaxlib", "orbax", "optax", "flax"}:
                raise ImportError(f"{name} must not be imported here")

    sys.meta_path.insert(0, Refuse())
    """
)


@pytest.fixture
def nitro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call `nitro` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

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

    def make(*, block_jax: bool = False) -> dict[str, str]:
        paths = [str(REPOSITORY)]
        if block_jax:
            site = tmp_path / "block-jax"
            site.mkdir(exist_ok=True)
            (site / "sitecustomize.py").write_text(BLOCK_JAX)
            paths.insert(0, str(site))
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", "COLUMNS": "80"}

    return make


@pytest.fixture
def process(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m nitro_cli` as a process; `block_jax=True` makes JAX unimportable in it."""

    def call(*words: str, block_jax: bool = False, cwd: Path | None = None, **keywords: Any) -> subprocess.CompletedProcess[str]:
        env = environment(block_jax=block_jax) | keywords.pop("env", {})
        return subprocess.run(
            [sys.executable, "-m", "nitro_cli", *map(str, words)],
            capture_output=True, text=True, timeout=120, cwd=cwd or tmp_path, env=env, **keywords,
        )  # fmt: skip

    return call
