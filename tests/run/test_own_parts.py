"""A user's own object in the place of each part: a run trained with one, and what it lacks named before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nitro_cli import Nitro, runs
from tests.tiny import Light


class Small(Light):
    """One epoch of two steps."""

    checkpointer = None
    logger = None


class Lines:
    """A logger: the four verbs that a run calls, into a list."""

    def __init__(self, broken: bool = False) -> None:
        self.lines: list[tuple[str, Any]] = []
        self.broken = broken

    def log_params(self, params: Any) -> None:
        self.lines.append(("params", dict(params)))

    def log_metrics(self, metrics: Any, *, step: int, epoch: int, context: str) -> None:
        self.lines.append((context, {**metrics, "step": step}))

    def log_other(self, key: str, value: Any) -> None:
        self.lines.append((key, value))

    def finish(self, status: str) -> None:
        if self.broken:
            raise ConnectionError("the server is gone")
        self.lines.append(("finish", status))


def test_a_logger_of_ones_own_gets_every_line(tmp_path: Path) -> None:
    logger = Lines()
    Nitro(Small(), logger=logger, run_dir=tmp_path).train()
    kinds = [kind for kind, _ in logger.lines]
    assert kinds.count("train") == 2
    assert kinds.count("validate") == 1
    assert kinds[0] == "params"
    assert logger.lines[-1] == ("finish", "completed")
    assert "acc" in dict(logger.lines)["validate"]


def test_a_logger_that_fails_to_finish_ends_the_run_as_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="the server is gone"):
        Nitro(Small(), logger=Lines(broken=True), run_dir=tmp_path).train()
    assert [run.status for run in runs(tmp_path)] == ["error"]
