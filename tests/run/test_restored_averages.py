"""Averages at the end of training and as sources: all there, or said, or refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Average, Best, Checkpointer, EarlyStopping, Epochs, Every, Last, Nitro, average_checkpoints, runs
from nitro_cli.checkpoints import read_record
from nitro_cli.errors import CheckpointNotFoundError, ConfigError
from nitro_cli.experiment import Selector
from tests.tiny import Light

ALL = Checkpointer(keep=("every(1)",))


class Four(Light):
    """Four epochs at a rate that moves the weights."""

    max_epochs = 4
    learning_rate = 0.1
    logger = None
    checkpointer = ALL


class Unscored(Four):
    """Without a split to validate on."""

    def build_data(self, dist: Any) -> Any:
        return {"train": super().build_data(dist)["train"]}


def kernels(root: Path) -> dict[int, np.ndarray]:
    paths = {entry.epoch: root / entry.path for entry in runs(root)[0].checkpoints}
    return {epoch: read_record(path).arrays["params/kernel"].astype(np.float64) for epoch, path in paths.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs that keeps the last three."""
    root = tmp_path_factory.mktemp("four")
    Nitro(Four(checkpointer=Checkpointer(keep=("last(3)",))), run_dir=root).train()
    return root


def test_an_average_of_the_last_needs_no_val_split(tmp_path: Path) -> None:
    nitro = Nitro(Unscored(), run_dir=tmp_path, restore_best=Average(Last(2))).train()
    held = kernels(tmp_path)
    np.testing.assert_allclose(np.asarray(nitro.params["kernel"]), (held[3] + held[4]) / 2, rtol=1e-6)
    assert nitro.checkpoint_source == f"{nitro.run_id}:average(last(2))"


LACKING = {
    "more of the last than are kept": (Average(Last(5)), ["last(1)"], 9, "keep = [last(1)] may not leave them"),
    "more of the best than are kept": (Average(Best(4)), ["best(3)", "last(1)"], 9, "may not leave them"),
    "the last where the best are kept": (Average(Last(2)), ["best(5)"], 9, "may not leave them"),
    "epochs that rotate away": (Average(Epochs(1, 2)), ["last(2)"], 9, "may not leave them"),
    "epochs beyond the end": (Average(Epochs(10, 11)), ["every(1)"], 9, "may not leave them"),
    "every second where every third is kept": (Average(Every(2)), ["every(3)"], 9, "may not leave them"),
    "the best of the last": (Average(Best(2, among=Last(4))), ["best(2)", "last(1)"], 9, "may not leave them"),
}


@pytest.mark.parametrize("what", LACKING)
@pytest.mark.filterwarnings("ignore:the checkpointer keeps no last")
def test_an_average_of_more_than_the_policy_keeps_is_refused_at_setup(what: str) -> None:
    average, keep, epochs, why = LACKING[what]
    with pytest.raises(ConfigError, match="asks for checkpoints that will not be there") as refused:
        Nitro(Four(checkpointer=Checkpointer(keep=keep), max_epochs=epochs), restore_best=average)
    assert why in str(refused.value.why)
    if what == "epochs beyond the end":
        assert "raise max_epochs" in str(refused.value.fix)
    else:
        told = re.findall(r"'([^']+)'", str(refused.value.fix))
        assert Nitro(Four(checkpointer=Checkpointer(keep=told), max_epochs=epochs), restore_best=average).step == 0


@pytest.mark.parametrize(
    ("average", "keep"),
    [
        (Average(Last(5)), ["last(5)"]),
        (Average(Last(5)), ["every(1)"]),
        (Average(Best(2)), ["best(3)", "last(1)"]),
        (Average(Best(2, among=Last(4))), ["last(4)"]),
        (Average(Every(4)), ["every(2)"]),
        (Average(Epochs(2, 4)), ["epochs(1:4)"]),
        (Average(Last(3)), ["epochs(7:9)"]),
        ("average(last(2))", ["last(2)"]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the checkpointer keeps no last")
def test_an_average_that_the_policy_keeps_is_taken(average: Any, keep: list[str]) -> None:
    assert Nitro(Four(checkpointer=Checkpointer(keep=keep), max_epochs=9), restore_best=average).step == 0


def test_what_can_never_be_restored_is_refused_at_setup() -> None:
    with pytest.raises(ConfigError, match="will not be there") as refused:
        Nitro(Four(checkpointer=None), restore_best=Average(Last(2)))
    assert "none is written" in str(refused.value.why)
    with pytest.raises(ConfigError, match="will not be there") as refused:
        Nitro(Unscored(), restore_best=Average(Best(2)))
    assert "no `val` split" in str(refused.value.why)
    for wrong in (Last(2), "last(2)", 3, ("latest", "best")):
        with pytest.raises(ConfigError, match="restore_best is"):
            Nitro(Four(), restore_best=wrong)


def test_a_selector_of_ones_own_is_asked_what_it_picks() -> None:
    class Odd(Selector):
        def select(self, entries: Any, mode: Any = None) -> Any:
            return [entry for entry in entries if entry.epoch % 2]

    with pytest.raises(ConfigError, match="will not be there"):
        Nitro(Four(checkpointer=Checkpointer(keep=(Every(2), Last(1)))), restore_best=Average(Odd()))
    assert Nitro(Four(checkpointer=Checkpointer(keep=(Odd(), Last(1)))), restore_best=Average(Odd())).step == 0


def test_a_run_that_ends_before_the_epochs_named_says_so_and_keeps_its_weights(tmp_path: Path) -> None:
    rule = EarlyStopping(patience=1, min_delta=10.0)
    with pytest.warns(UserWarning, match=r"restore_best: average\(epochs\(1:3\)\).*epoch 3; the final weights stay"):
        nitro = Nitro(Four(early_stop=rule), run_dir=tmp_path, restore_best=Average(Epochs(1, 2, 3))).train()
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", 2)
    np.testing.assert_array_equal(np.asarray(nitro.params["kernel"]), kernels(tmp_path)[2].astype(np.float32))


def test_weights_of_epochs_that_are_gone_are_refused_by_name(trained: Path) -> None:
    for source in (("latest", Average(Epochs(1, 2, 3))), "latest:average(epochs(1:3))"):
        with pytest.raises(CheckpointNotFoundError, match="does not keep: epoch 1") as refused:
            Nitro(Four(), run_dir=trained, weights=source)
        assert refused.value.why == "the run keeps the epochs: 2, 3, 4"
    with pytest.raises(CheckpointNotFoundError, match=r"epochs 1, 5, 6, 7, 8, 9, 10, 11, \.\.\."):
        Nitro(Four(), run_dir=trained, weights=("latest", Average(Epochs(range(1, 10**9)))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for whole in (Epochs(2, 3), Every(2), Last(3)):
            assert Nitro(Four(checkpointer=None), run_dir=trained, weights=("latest", Average(whole))).step == 0


@pytest.mark.parametrize(
    ("asked", "is_"), [(Last(10), "last(3)"), (Best(9), "best(3)"), (Best(4, among=Last(2)), "best(2, among=last(2))")]
)
def test_an_average_of_fewer_says_how_many_and_is_named_after_them(asked: Selector, is_: str, trained: Path) -> None:
    with pytest.warns(UserWarning, match=rf"{(asked.ranks and 'best') or 'last'}.* finds \d checkpoints of the run"):
        nitro = Nitro(Four(), run_dir=trained, weights=("latest", Average(asked)))
    assert nitro.checkpoint_source.endswith(f":average({is_})")
    with pytest.warns(UserWarning, match="finds"):
        facts = average_checkpoints(trained, "latest", Average(asked)).meta.averaged_from
    assert facts.spec == f"average({is_})"
    assert len(facts.epochs) == int(is_[5])
