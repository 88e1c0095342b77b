"""Processes to kill, and places to fill."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.faults.outcome")

REPOSITORY = Path(__file__).resolve().parents[2]
SUBJECT = "tests.faults.subject:Subject"
SERVERS = 2
ONE, SEVERAL = 0.0, 60.0
"""Seconds of a call of the training program: every step is one, or as many steps as fit before a checkpoint."""


class Victims:
    """Runs `nitro` commands in children that are told at which instant a signal meets them; two at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._servers: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        self._all = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.victims"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
                env=environment,
            )
            for _ in range(SERVERS)
        ]
        for server in self._all:
            self._servers.put(server)
        self.pool = ThreadPoolExecutor(SERVERS)

    def run(self, cwd: Path, *words: str, **request: Any) -> int:
        """Run one command in `cwd`, made if it is not there; return how it ended (-9 when killed).

        Steps come in calls of `SEVERAL` unless the request says otherwise.
        """
        request = {"call_seconds": SEVERAL, **request}
        cwd.mkdir(parents=True, exist_ok=True)
        server = self._servers.get()
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps({"words": words, "cwd": str(cwd), **request}) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())
        finally:
            self._servers.put(server)

    def close(self) -> None:
        """End the servers."""
        self.pool.shutdown()
        for server in self._all:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(60)


@pytest.fixture(scope="session")
def fast_place() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of fsyncs take minutes on a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="nitro-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def child_environment(fast_place: Path) -> dict[str, str]:
    """What a child needs to find nitro and the subject, and to take its programs from one cache."""
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "NITRO_CACHE_DIR": str(fast_place / "programs"),
        "NITRO_NO_PLUGINS": "1",
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "200",
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture(scope="session")
def victims(child_environment: dict[str, str]) -> Iterator[Victims]:
    """The servers that fork a child per command."""
    made = Victims(child_environment)
    yield made
    made.close()


@pytest.fixture(scope="session")
def uninterrupted(victims: Victims, fast_place: Path) -> Path:
    """A working directory with one whole run of the subject, a step in each call, and its instants in `instants`."""
    place = fast_place / "uninterrupted"
    assert victims.run(place, "train", SUBJECT, call_seconds=ONE) == 0, (place / "said").read_text()
    return place
