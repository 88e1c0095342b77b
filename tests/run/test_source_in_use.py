"""Resuming a run that another process is training, whose checkpoints rotate away while they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nitro_cli.checkpoints import RunStore
from nitro_cli.checkpoints import record as record_module
from nitro_cli.checkpoints.durable import remove_tree
from nitro_cli.errors import CheckpointNotFoundError, ExitCode, LockedError
from nitro_cli.experiment import Checkpointer, Every
from nitro_cli.run.restore import load_source


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """A run with two checkpoints, each of which is deleted as soon as it is read."""
    held = RunStore.create(
        tmp_path, experiment="m:Toy", checkpointer=Checkpointer(keep=(Every(1),)), metric="loss", mode="min"
    )
    for epoch in (1, 2):
        held.save({"epoch": epoch}, {"params/w": epoch}, epoch=epoch, step=epoch, score=1.0, name=f"epoch-{epoch}")
    held.wait()
    verify = record_module.verify_record

    def rotated(path: Path) -> object:
        remove_tree(path)
        return verify(path)

    monkeypatch.setattr(record_module, "verify_record", rotated)
    return held


@pytest.mark.parametrize("resume", ["auto", "latest:latest", "latest:best"])
def test_a_run_at_work_is_in_use_whatever_became_of_its_checkpoints(store: RunStore, resume: str) -> None:
    with pytest.raises(LockedError, match=f"the run {store.id} is in use") as caught:
        load_source(None, resume, root=store.root, monitor=None)
    assert caught.value.exit_code == ExitCode.INCOMPATIBLE
    store.close()


def test_a_run_that_nobody_trains_is_not_in_use(store: RunStore) -> None:
    store.close()
    with pytest.raises(CheckpointNotFoundError):
        load_source(None, "latest:latest", root=store.root, monitor=None)
