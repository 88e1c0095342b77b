"""Other words of a handle: a checkpoint of the run that another handle wrote, its data, and who is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Average, Checkpointer, CheckpointRecord, Epochs, Nitro, load_checkpoint, train
from nitro_cli.errors import CheckpointNotFoundError, ConfigError
from tests.tiny import Light

SCORES = [0.5, 0.9, 0.1]


class Scored(Light):
    """Three epochs, the second the best."""

    max_epochs = 3
    learning_rate = 0.1
    monitor = ("score", "max")
    checkpointer = Checkpointer(keep=("every(1)", "last(1)"))
    logger = None

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        Scored.calls += 1
        return {"score": SCORES[(Scored.calls - 1) % 3]}


Scored.calls = 0


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """A trained handle, in whose directory another run was written since."""
    Scored.calls = 0
    nitro = Nitro(Scored(), run_dir=tmp_path_factory.mktemp("first")).train()
    Nitro(Scored(learning_rate=1.0), run_dir=nitro.run_dir).train()
    return nitro


def kernel_of(handle: Nitro, epoch: int) -> np.ndarray:
    (path,) = (handle.run_path / "checkpoints").glob(f"epoch-000{epoch}*")
    return load_checkpoint(path).arrays["params/kernel"]


def test_load_checkpoint_gives_metadata_and_arrays_of_the_host(first: Nitro) -> None:
    (path,) = (first.run_path / "checkpoints").glob("epoch-0003*")
    record = load_checkpoint(str(path))
    assert isinstance(record, CheckpointRecord)
    assert (record.meta.epoch, record.meta.step) == (3, first.step)
    assert {name for name in record.arrays if name.startswith("params/")} == {"params/kernel", "params/bias"}
    assert all(isinstance(leaf, np.ndarray) for name, leaf in record.arrays.items() if name.startswith("params/"))
    np.testing.assert_array_equal(record.arrays["params/kernel"], np.asarray(first.params["kernel"]))


@pytest.mark.parametrize(("which", "epoch"), [("best", 2), ("latest", 3)])
def test_a_pair_of_a_handle_is_a_checkpoint_of_the_run_it_wrote(
    which: str, epoch: int, first: Nitro, tmp_path: Path
) -> None:
    warm = Nitro(Scored(), run_dir=tmp_path, weights=(first, which))
    np.testing.assert_array_equal(np.asarray(warm.params["kernel"]), kernel_of(first, epoch))
    assert warm.step == 0
    resumed = Nitro(Scored(max_epochs=4), run_dir=first.run_dir, resume=(first, which))
    np.testing.assert_array_equal(np.asarray(resumed.params["kernel"]), kernel_of(first, epoch))
    assert resumed.epoch == epoch


def test_best_of_a_handle_is_by_what_that_handle_ranks_by(first: Nitro, tmp_path: Path) -> None:
    other = Checkpointer(metric="score", mode="min")
    warm = Nitro(Scored(checkpointer=other), run_dir=tmp_path, weights=(first, "best"))
    np.testing.assert_array_equal(np.asarray(warm.params["kernel"]), kernel_of(first, 2))


def test_an_average_may_be_of_a_handles_run(first: Nitro, tmp_path: Path) -> None:
    warm = Nitro(Scored(), run_dir=tmp_path, weights=(first, Average(Epochs(1, 2))))
    mean = (kernel_of(first, 1).astype(np.float64) + kernel_of(first, 2)) / 2
    np.testing.assert_allclose(np.asarray(warm.params["kernel"]), mean, rtol=1e-6)


def test_a_resume_of_the_latest_continues_the_handles_run_and_of_the_best_branches(tmp_path: Path) -> None:
    Scored.calls = 0
    begun = Nitro(Scored(), run_dir=tmp_path).train()
    going_on = Nitro(Scored(max_epochs=4), run_dir=tmp_path, resume=(begun, "latest")).train()
    assert (going_on.run_id, going_on.epoch) == (begun.run_id, 4)
    branch = Nitro(Scored(), run_dir=tmp_path, resume=(begun, "best")).train()
    assert branch.run_id != begun.run_id


def test_a_handle_that_wrote_no_run_or_that_is_to_be_resumed_itself_is_refused(first: Nitro) -> None:
    with pytest.raises(CheckpointNotFoundError, match="has written no run"):
        Nitro(Scored(), weights=(Nitro(Scored()), "best"))
    with pytest.raises(ConfigError, match="resume was given a live handle") as refused:
        Nitro(Scored(), resume=first)
    assert '(handle, "latest")' in refused.value.fix
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint bst"):
        Nitro(Scored(), weights=(first, "bst"))


def test_the_data_of_a_handle_are_its_named_sources(first: Nitro) -> None:
    data = Scored().build_data(None)
    handle = Nitro(Scored(), data=data)
    assert handle.data == data
    assert handle.data["val"] is data["val"]
    assert Nitro(Scored(), data=handle.data).data == data
    assert Nitro(Scored(), data={}).data == {}


def test_run_ref_has_the_handle_before_training_starts(tmp_path: Path) -> None:
    handles: list[Nitro] = []
    steps: list[int] = []
    for told in (handles, lambda handle: steps.append(handle.step) or handles.append(handle)):
        nitro = train(Scored(max_epochs=1), run_dir=tmp_path, run_ref=told)
        assert handles[-1] is nitro
    assert steps == [0]
    with pytest.raises(ConfigError, match="run_ref is int"):
        Nitro(Scored(), run_ref=3)
