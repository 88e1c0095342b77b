"""Runs of tiny experiments without a display, with one program cache for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from nitro_cli import Nitro, set_progress_reporter

Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    previous = set_progress_reporter(None)
    yield
    set_progress_reporter(previous)


@pytest.fixture(scope="session")
def log_lines() -> Callable[..., Lines]:
    """The metric lines of a run's log, of some contexts, without what the clock decides."""

    def read(nitro: Nitro, *contexts: str) -> Lines:
        assert nitro.run_path is not None
        lines = [json.loads(text) for text in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
        metrics = [line for line in lines if line["type"] == "metrics" and line["context"] in contexts]
        return [{key: value for key, value in line.items() if key != "time"} for line in metrics]

    return read


@pytest.fixture(scope="session")
def bits() -> Callable[[Any], dict[str, bytes]]:
    """A tree's leaves by path, bit for bit."""

    def read(tree: Any) -> dict[str, bytes]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}

    return read


@pytest.fixture(scope="session")
def run_files() -> Callable[[Path], list[str]]:
    """What a run directory holds: names of runs and records, nothing where no run was made."""

    def read(root: Path) -> list[str]:
        hidden = {path.name for path in root.rglob("*")} if root.exists() else set()
        return sorted(name for name in hidden if not name.endswith(".lock") and name != "manifest.json")

    return read
