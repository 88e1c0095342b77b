"""Resuming a run that another process is training, whose checkpoints rotate away while they are read."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from nitro_cli.checkpoints import RecordMeta, RunStore
from nitro_cli.checkpoints import record as record_module
from nitro_cli.checkpoints.durable import remove_tree
from nitro_cli.errors import CheckpointNotFoundError, ExitCode, LockedError
from nitro_cli.experiment import Best, Checkpointer, Every, Last
from nitro_cli.run.restore import load_source


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """A run with two checkpoints, each of which is deleted as soon as it is read."""
    held = RunStore.create(
        tmp_path, experiment="m:Toy", checkpointer=Checkpointer(keep=(Every(1),)), metric="loss", mode="min"
    )
    for epoch in (1, 2):
        held.save(
            RecordMeta(epoch=epoch), {"params/w": epoch}, epoch=epoch, step=epoch, score=1.0, name=f"epoch-{epoch}"
        )
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
        load_source(None, resume, root=store.root, selection=None)
    assert caught.value.exit_code == ExitCode.INCOMPATIBLE
    store.close()


def test_a_run_that_nobody_trains_is_not_in_use(store: RunStore) -> None:
    store.close()
    with pytest.raises(CheckpointNotFoundError):
        load_source(None, "latest:latest", root=store.root, selection=None)


@pytest.mark.parametrize("weights", ["latest:best", "latest:latest"])
def test_weights_of_a_run_at_work_are_those_it_has_by_the_time_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    held = RunStore.create(
        tmp_path, experiment="m:Toy", checkpointer=Checkpointer(keep=(Best(1), Last(1))), metric="loss", mode="min"
    )

    def save(epoch: int) -> None:
        held.save(
            RecordMeta(epoch=epoch), {"params/w": epoch}, epoch=epoch, step=epoch, score=-epoch, name=f"epoch-{epoch}"
        )
        held.wait()

    save(1)
    verify = record_module.verify_record
    left = iter((2, 3))

    def trained_on(path: Path) -> object:
        for epoch in left:
            save(epoch)
            break
        return verify(path)

    monkeypatch.setattr(record_module, "verify_record", trained_on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = load_source(weights, None, root=tmp_path, selection=None)
    assert source is not None
    assert source.path == held.path / "checkpoints" / "epoch-3"
    assert source.record.arrays["params/w"] == 3
    held.close()
