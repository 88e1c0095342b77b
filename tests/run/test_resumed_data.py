"""A resume knows the data of its record again: inside an epoch other data is refused, at an epoch's end it is said."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Checkpointer, Experiment, Nitro, checkpoint_info, read_manifest
from nitro_cli.checkpoints import CheckpointRecord, resume_meta
from nitro_cli.data import Split, inspect_split
from nitro_cli.errors import DataError, IncompatibleError, NitroWarning
from nitro_cli.run.restore import Source
from nitro_cli.run.resumed_data import check_resumed_data
from tests.tiny import stop_after


def rows(count: int, value: float = 0.0) -> dict[str, np.ndarray]:
    return {"x": np.arange(count, dtype=np.float32)[:, None] + value}


def train(count: int = 100, batch: int = 30, value: float = 0.0, **words: Any) -> ArrayBatches:
    return ArrayBatches(rows(count, value), batch, **{"shuffle": True, "drop_last": True, **words})


def val(count: int = 8, batch: int = 4) -> ArrayBatches:
    return ArrayBatches(rows(count), batch)


class Line(Experiment):
    max_epochs = 2
    logger = None
    checkpointer = Checkpointer(keep=("last(2)",))
    learning_rate = 1e-6

    def build_data(self, dist: Any) -> Any:
        return {"train": train(), "val": val()}

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs**2)

    def optimizer(self, group: str) -> Any:
        return optax.sgd


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run that was stopped after the first of three steps."""
    nitro = Nitro(Line(), run_dir=tmp_path_factory.mktemp("stopped"))
    stop_after(nitro, 1)
    nitro.train()
    assert nitro.step == 1
    return nitro.run_dir


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run of one epoch."""
    return Nitro(Line(), max_epochs=1, run_dir=tmp_path_factory.mktemp("ended")).train().run_dir


@pytest.fixture
def resume(tmp_path: Path) -> Callable[..., Nitro]:
    def again(root: Path, **data: Any) -> Nitro:
        shutil.copytree(root, tmp_path / "copy")
        return Nitro(Line(), data={"train": train(), "val": val(), **data}, run_dir=tmp_path / "copy", resume="auto")

    return again


OTHER = [
    pytest.param(lambda: train(101), "rows: 100 in the checkpoint, 101 here", id="a row more"),
    pytest.param(lambda: train(batch=33), "batch size: 30 in the checkpoint, 33 here", id="another batch size"),
    pytest.param(
        lambda: train(shuffle=False), "shuffled by the run's seed in the checkpoint, as stored here", id="order"
    ),
    pytest.param(lambda: train(seed=5), "shuffled by the seed 5 here", id="a seed of its own"),
    pytest.param(lambda: train(value=1.0), "other contents in the first batch", id="other contents"),
    pytest.param(lambda: train(140), "3 batches in the checkpoint, 1 and 4 here", id="another number of batches"),
]


@pytest.mark.parametrize(("other", "told"), OTHER)
def test_other_training_data_is_refused_inside_an_epoch(other: Any, told: str, stopped: Path, resume: Any) -> None:
    with pytest.raises(IncompatibleError, match="cut another way") as caught:
        resume(stopped, train=other())
    assert told in str(caught.value)
    assert "split `train`" in str(caught.value)


@pytest.mark.parametrize(("other", "told"), OTHER[:2])
def test_other_training_data_is_warned_about_at_the_end_of_an_epoch(
    other: Any, told: str, ended: Path, resume: Any
) -> None:
    with pytest.warns(NitroWarning, match=told):
        assert resume(ended, train=other()).train().step == 6


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"val": val(9)}, "split `val`: rows: 8 in the checkpoint, 9 here"),
        ({"val": val(8, 2)}, "split `val`: batch size: 4 in the checkpoint, 2 here"),
    ],
)
def test_other_validation_data_is_warned_about(other: Any, told: str, stopped: Path, resume: Any) -> None:
    with pytest.warns(NitroWarning, match=told):
        resume(stopped, **other)


def test_the_same_data_is_taken_without_a_word(stopped: Path, resume: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        assert resume(stopped).train().step == 6


def test_a_record_keeps_rows_batch_size_and_order_of_every_split(stopped: Path) -> None:
    (entry,) = read_manifest(stopped).entries
    kept = checkpoint_info(stopped / entry.path).meta.data
    assert {name: (facts["rows"], facts["batch_size"], facts["order"]) for name, facts in kept.items()} == {
        "train": (100, 30, "shuffled by the run's seed"),
        "val": (8, 4, "as stored"),
    }


def test_a_record_without_facts_of_the_data_goes_on(stopped: Path) -> None:
    (entry,) = read_manifest(stopped).entries
    held = checkpoint_info(stopped / entry.path).meta.model_copy(update={"data": {}})
    meta = resume_meta(held, entry.path)
    source = Source("resume", CheckpointRecord(meta=meta, arrays={}), "an old record")
    other: dict[str, Split] = {"train": inspect_split("train", train(101, value=3.0), train=True)}
    check_resumed_data(source, other, accum=1, seed=0)
    with pytest.raises(IncompatibleError, match="accum 1 and 3 batches"):
        check_resumed_data(source, {"train": replace(other["train"], batches=4)}, accum=1, seed=0)


class Varying:
    """Batches whose noise no seed repeats, in an order that does: contents say nothing about what data it is."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return 3

    def begin_epoch(self, epoch: int, seed: int) -> None:
        return None

    def batch_at(self, index: int, plan: Any) -> dict[str, np.ndarray]:
        return {"x": self.rng.normal(size=(30, 1)).astype(np.float32)}


def test_contents_that_vary_from_draw_to_draw_are_not_held_against_a_resume(tmp_path: Path) -> None:
    first = Nitro(Line(), data={"train": Varying()}, run_dir=tmp_path)
    stop_after(first, 1)
    first.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        assert Nitro(Line(), data={"train": Varying()}, run_dir=tmp_path, resume="auto").train().step == 6


class OwnOrder:
    """Iterates only, in an order drawn from a generator that `__init__` made."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return ({"x": part} for part in self.rng.permutation(rows(64)["x"]).reshape(4, 16, 1))


class OrderOfEpoch(OwnOrder):
    """The same with an order that follows the epoch it is told."""

    def set_epoch(self, epoch: int) -> None:
        self.rng = np.random.default_rng(epoch)


class OnePass(OwnOrder):
    """Gives its batches once."""

    def __init__(self) -> None:
        super().__init__()
        self.left = super().__iter__()

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self.left


def test_a_source_with_an_order_of_its_own_is_told_at_setup(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match=r"split `train`: .*order is its own, and a resume cannot repeat it"):
        nitro = Nitro(Line(), data={"train": OwnOrder()}, run_dir=tmp_path)
    assert "its order is its own, and a resume cannot repeat it" in str(nitro.report)
    with pytest.warns(NitroWarning, match="split `val`"):
        Nitro(Line(), data={"train": train(), "val": OwnOrder()}, run_dir=tmp_path)


def test_a_source_that_repeats_its_epochs_is_told_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        nitro = Nitro(Line(), data={"train": OrderOfEpoch()}, run_dir=tmp_path)
    assert "its own" not in str(nitro.report)


def test_a_source_of_one_pass_is_refused_at_setup(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can be read only once") as caught:
        Nitro(Line(), data={"train": OnePass()}, run_dir=tmp_path)
    assert "split `train`" in str(caught.value)


def of_torch(count: int) -> Any:
    from torch.utils.data import DataLoader

    samples = [{"x": np.float32([row])} for row in range(count)]
    return DataLoader(samples, batch_size=30, shuffle=True, drop_last=True)  # type: ignore[arg-type]


def of_hugging_face(count: int) -> Any:
    import datasets

    from nitro_cli.data import HuggingFaceBatches

    held = datasets.Dataset.from_dict({"x": np.arange(count, dtype=np.float32)[:, None]})
    return HuggingFaceBatches(held.with_format("numpy"), 30, shuffle=True, drop_last=True)


@pytest.mark.parametrize(("library", "make"), [("torch", of_torch), ("datasets", of_hugging_face)])
def test_sources_of_libraries_say_how_many_rows_they_have(library: str, make: Any, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"the test needs {library}, which is not installed")
    first = Nitro(Line(), data={"train": make(100)}, run_dir=tmp_path)
    stop_after(first, 1)
    first.train()
    with pytest.raises(IncompatibleError, match="rows: 100 in the checkpoint, 101 here"):
        Nitro(Line(), data={"train": make(101)}, run_dir=tmp_path, resume="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        assert Nitro(Line(), data={"train": make(100)}, run_dir=tmp_path, resume="auto").train().step == 6
