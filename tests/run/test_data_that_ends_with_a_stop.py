"""A stop signal reaches the worker processes of a loader too: what they leave unfinished is no failure of the run."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import ArrayBatches, Checkpointer, Nitro, NoPrefetch
from nitro_cli.data import prefetch
from nitro_cli.errors import NitroWarning
from nitro_cli.run import evaluation
from tests.tiny import Light, points

STEPS = 6


class Kept(Light):
    max_epochs = 2
    checkpointer = Checkpointer(keep=("last(2)",))


class Interrupted:
    """Batches of an array source; at one of them a signal reaches the process, and the source ends as `how` says.

    Args:
        rows: rows of the split.
        at: (pass from 1 on over the epochs, batch).
        how: called after the signal was sent.
    """

    def __init__(self, rows: int, at: tuple[int, int] | None, how: Any, number: int = signal.SIGINT) -> None:
        self.batches = list(ArrayBatches(points(rows, rows), 8))
        self.at, self.how, self.number = at, how, number
        self.passes = -2  # setup draws two first batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        self.passes += 1
        for index, batch in enumerate(self.batches):
            if (self.passes, index) == self.at:
                signal.raise_signal(self.number) if threading.current_thread() is threading.main_thread() else os.kill(
                    os.getpid(), self.number
                )
                self.how()
            yield batch


def dying() -> None:
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.\nmore")


def ending() -> None:
    """As a generator over a queue that breaks ends."""
    raise OSError("handle is closed")


def fed(train: Any, val: Any = None) -> dict[str, Any]:
    return {"train": train, "val": ArrayBatches(points(11, 2), 8) if val is None else val}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    data = fed(Interrupted(48, None, dying), Interrupted(16, None, dying))
    return Nitro(Kept(), data=data, run_dir=tmp_path_factory.mktemp("whole")).train()


@pytest.mark.parametrize(
    ("wrap", "number"),
    [(lambda s: s, signal.SIGINT), (lambda s: s, signal.SIGUSR1), (NoPrefetch, signal.SIGTERM)],
)
def test_a_loader_that_dies_of_the_signal_ends_the_run_saved(
    wrap: Any, number: int, whole: Nitro, tmp_path: Path, bits: Any
) -> None:
    data = fed(wrap(Interrupted(48, (1, 4), dying, number)), Interrupted(16, None, dying))
    nitro = Nitro(Kept(), data=data, run_dir=tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NitroWarning)
        nitro.train()
    assert (nitro.stop_reason, nitro.state_saved) == ("requested", True)
    assert 2 <= nitro.step <= 4  # the batches that lay ready may be left
    said = [str(one.message) for one in told if "failed as the run was stopping" in str(one.message)]
    assert said in ([], ["split `train`: its source failed as the run was stopping: RuntimeError: DataLoader worker "
                         "(pid 7) is killed by signal: Terminated."])  # fmt: skip
    data = fed(Interrupted(48, None, dying), Interrupted(16, None, dying))
    resumed = Nitro(Kept(), data=data, run_dir=tmp_path, resume="auto").train()
    assert bits(resumed.train_state) == bits(whole.train_state)
    assert resumed.history.json_rows() == whole.history.json_rows()


def test_a_loader_that_waits_for_ever_for_its_dead_workers_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "HURRIED_JOIN_SECONDS", 0.05)
    release = threading.Event()
    source = Interrupted(48, (1, 3), lambda: release.wait(60))
    nitro = Nitro(Kept(), data=fed(source), run_dir=tmp_path)
    try:
        with pytest.warns(NitroWarning, match="did not end within"):
            nitro.train()
    finally:
        release.set()
    assert (nitro.stop_reason, nitro.state_saved) == ("requested", True)
    assert 1 <= nitro.step <= 3


@pytest.mark.parametrize(("wrap", "how"), [(lambda s: s, dying), (NoPrefetch, ending)])
def test_a_validation_whose_loader_dies_is_taken_again_by_the_resume(
    wrap: Any, how: Any, whole: Nitro, tmp_path: Path, bits: Any
) -> None:
    data = fed(Interrupted(48, None, dying), wrap(Interrupted(16, (1, 1), how, signal.SIGTERM)))
    nitro = Nitro(Kept(), data=data, run_dir=tmp_path)
    with pytest.warns(NitroWarning, match="split `val`: its source failed as the run was stopping"):
        nitro.train()
    assert (nitro.stop_reason, nitro.step, nitro.state_saved) == ("requested", STEPS, True)
    assert nitro.history.json_rows() == []
    data = fed(Interrupted(48, None, dying), Interrupted(16, None, dying))
    resumed = Nitro(Kept(), data=data, run_dir=tmp_path, resume="auto").train()
    assert bits(resumed.train_state) == bits(whole.train_state)
    assert resumed.history.json_rows() == whole.history.json_rows()


@pytest.mark.parametrize("waits", [False, True])
def test_a_validation_is_finished_after_the_signal_as_long_as_its_batches_come(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "HURRIED_JOIN_SECONDS", 0.05)
    monkeypatch.setattr(evaluation, "PATIENCE", 0.05 if waits else 60.0)
    release = threading.Event()
    source = Interrupted(16, (1, 1), (lambda: release.wait(60)) if waits else lambda: None)
    nitro = Nitro(Kept(), data=fed(Interrupted(48, None, dying), source), run_dir=tmp_path)
    try:
        if waits:
            with pytest.warns(NitroWarning, match=r"split `val`: no batch came for 0\.05 s after the signal"):
                nitro.train()
        else:
            nitro.train()
    finally:
        release.set()
    assert (nitro.stop_reason, nitro.step, nitro.state_saved) == ("requested", STEPS, True)
    assert len(nitro.history) == (0 if waits else 1)


def test_a_loader_that_dies_of_itself_is_a_failure(tmp_path: Path) -> None:
    class Dying(Interrupted):
        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            yield from self.batches[:3]
            dying()

    with pytest.raises(RuntimeError, match="is killed by signal"):
        Nitro(Kept(), data=fed(Dying(48, None, dying)), run_dir=tmp_path).train()


def test_a_handler_of_dead_children_does_not_raise_inside_the_run(tmp_path: Path) -> None:
    def raising(number: int, frame: Any) -> None:
        raise RuntimeError("a worker died")

    class Forking(Interrupted):
        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            yield from self.batches

    nitro = Nitro(Kept(), data=fed(Forking(48, None, dying)), run_dir=tmp_path)
    previous = signal.signal(signal.SIGCHLD, raising)
    try:
        assert nitro.train().stop_reason == "completed"
        assert signal.getsignal(signal.SIGCHLD) is raising
    finally:
        signal.signal(signal.SIGCHLD, previous)
