"""Runs made of tiny records: a Python number as the only leaf needs no array store, so most tests load no orbax."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import RecordMeta, RunStore
from nitro_cli.errors import NitroWarning
from nitro_cli.experiment import Best, Checkpointer, Last

MakeRun = Callable[..., str]
DEFAULT_KEEP = (Best(3), Last(1))


@pytest.fixture
def make_run() -> MakeRun:
    """`make_run(root, scores, keep=..., metric=..., mode=..., status=..., leaf=...)` trains a pretend run.

    Epoch i has the i-th score, step 10 i and the leaf `params/w`, i by default. Returns the run's id.
    """

    def make(
        root: Path,
        scores: Iterable[float | None],
        keep: Any = DEFAULT_KEEP,
        metric: str | None = "loss",
        mode: str | None = "min",
        status: str = "completed",
        scope: str = "run",
        leaf: Callable[[int], Any] = lambda epoch: epoch,
    ) -> str:
        rule = Checkpointer(keep=keep, scope=scope)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NitroWarning)
            store = RunStore.create(
                root, experiment="pkg.mod:Toy", preset="base", seed=7, checkpointer=rule, metric=metric, mode=mode
            )
        for epoch, score in enumerate(scores, start=1):
            if store.admits(epoch, score):
                name = f"epoch-{epoch:04d}"
                store.save(
                    RecordMeta(epoch=epoch),
                    {"params/w": leaf(epoch)},
                    epoch=epoch,
                    step=epoch * 10,
                    score=score,
                    name=name,
                )
        store.wait()
        store.set_status(status)
        store.close()
        return store.id

    return make
