"""The installed `nitro` as a user runs it: a process of its own, in a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Process = subprocess.CompletedProcess[str]
Command = Callable[..., Process]
REPOSITORY = Path(__file__).resolve().parents[2]


def assert_plain(text: str) -> None:
    """No control codes: what a log file or a pipe gets."""
    assert "\x1b" not in text
    assert "\r" not in text


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run `nitro` with its output piped; all runs of the session share one program cache."""
    cache = tmp_path_factory.getbasetemp() / "programs"
    program = shutil.which("nitro", path=str(Path(sys.executable).parent))
    start = [program] if program else [sys.executable, "-m", "nitro_cli"]

    def call(*words: Any, cwd: Path, code: int = 0, **env: str) -> Process:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NITRO_")}
        full = {**inherited, "NITRO_CACHE_DIR": str(cache), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100", **env}
        full.pop("FORCE_COLOR", None)
        done = subprocess.run(
            [*start, *map(str, words)], cwd=cwd, env=full, text=True, capture_output=True, timeout=400, check=False
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert_plain(done.stdout)
        assert_plain(done.stderr)
        return done

    return call


@pytest.fixture(scope="session")
def document(command: Command) -> Callable[..., dict[str, Any]]:
    """Run `nitro ... --json` and read its document."""

    def call(*words: Any, **keywords: Any) -> dict[str, Any]:
        return json.loads(command(*words, "--json", **keywords).stdout)

    return call
