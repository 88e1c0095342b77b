"""A source may refill the arrays of a batch as soon as it is asked for the next one: nothing reads them any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Device, Experiment, Mean, Nitro, NoPrefetch, Prefetch
from nitro_cli.data import check_batch_at, inspect_split
from nitro_cli.errors import DataError, DivergenceError

ROWS = 4096
"""Enough that XLA:CPU would read the array where it is, long after the source was asked for more."""


def filled(index: int, array: np.ndarray) -> Mapping[str, np.ndarray]:
    array[:] = index + 1
    return {"x": array}


class Refilling:
    """Eight batches of value i + 1, all in one array."""

    def __init__(self) -> None:
        self.array = np.empty((ROWS, 1), np.float32)

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        return (filled(index, self.array) for index in range(len(self)))


class RefillingByIndex(Refilling):
    """The same by index."""

    max_workers = 1

    def begin_epoch(self, epoch: int, seed: int) -> None:
        return None

    def batch_at(self, index: int, plan: None) -> Mapping[str, np.ndarray]:
        return filled(index, self.array)


def through_transform() -> ArrayBatches:
    """The same out of a transform."""
    kept = np.empty((4, 1), np.float32)

    def transform(batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        kept[:] = batch["x"]
        return {"x": kept}

    values = np.repeat(np.arange(1, 9, dtype=np.float32), 4)[:, None]
    return ArrayBatches({"x": values}, 4, transform=transform)


class Summing(Experiment):
    """w goes up by the mean of each batch: 36 after one epoch from 0."""

    max_epochs = 1
    checkpointer = None
    logger = None
    learning_rate = 1.0

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.zeros((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return -jnp.mean(outputs)

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def build_data(self, dist: Any) -> Any:
        raise NotImplementedError


SOURCES = [
    pytest.param(Refilling, id="iterates"),
    pytest.param(lambda: NoPrefetch(Refilling()), id="iterates, inline"),
    pytest.param(RefillingByIndex, id="by index"),
    pytest.param(lambda: NoPrefetch(RefillingByIndex()), id="by index, inline"),
    pytest.param(lambda: Prefetch(through_transform(), workers=1), id="a transform"),
]


@pytest.mark.parametrize("make", SOURCES)
def test_training_reads_every_batch_as_it_was_given(make: Any, tmp_path: Path) -> None:
    nitro = Nitro(Summing(), data={"train": make()}, run_dir=tmp_path).train()
    assert float(nitro.params["w"][0]) == pytest.approx(36, rel=1e-5)


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_accumulation_holds_micro_batches_that_are_its_own(wrap: Any, tmp_path: Path) -> None:
    nitro = Nitro(Summing(accum=4), data={"train": wrap(Refilling())}, run_dir=tmp_path).train()
    assert float(nitro.params["w"][0]) == pytest.approx(2.5 + 6.5, rel=1e-5)


class Judged(Summing):
    """Host metrics of the batch itself, in training and in validation."""

    monitor = ("mean", "max")

    def metrics(self, outputs: Any, *, x: np.ndarray) -> Any:
        return {"mean": Mean(float(x.sum()), x.size)}

    def train_metrics(self, outputs: Any, *, x: np.ndarray) -> Any:
        return {"seen": float(x[0, 0])}

    def metrics_residency(self, hook: str) -> str:
        return "host"


class Lines:
    """A logger that keeps the train lines."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        if context == "train":
            self.seen.append(metrics["seen"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("log_") or name == "finish":
            return lambda *args, **words: None
        raise AttributeError(name)


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_metrics_on_the_host_read_their_own_batch(wrap: Any, tmp_path: Path) -> None:
    lines = Lines()
    data = {"train": wrap(Refilling()), "val": wrap(Refilling())}
    nitro = Nitro(Judged(logger=lines, log_every_n_steps=1), data=data, run_dir=tmp_path).train()
    assert lines.seen == [1, 2, 3, 4, 5, 6, 7, 8]
    assert nitro.metrics == {"mean": pytest.approx(4.5)}


class Poisoned(Refilling):
    """The third batch is not finite."""

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        for index in range(len(self)):
            self.array[:] = np.inf if index == 2 else index + 1
            yield {"x": self.array}


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_a_divergence_is_located_on_the_batch_that_diverged(wrap: Any, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="the first value that is not finite is") as caught:
        Nitro(Summing(), data={"train": wrap(Poisoned())}, run_dir=tmp_path).train()
    assert "step 3, epoch 1, batch 2" in str(caught.value)


def test_predictions_over_a_loader_are_of_their_own_batch(tmp_path: Path) -> None:
    nitro = Nitro(Summing(), data={}, run_dir=tmp_path)
    nitro.train_state = nitro.train_state._replace(params={"w": jnp.ones((1,))})
    outputs = list(nitro.predict(Refilling()))
    assert [float(batch[0, 0]) for batch in outputs] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_example_of_setup_stays_the_first_batch() -> None:
    split = inspect_split("train", Refilling())
    with split.stream(epoch=1, seed=0) as stream:
        assert sum(1 for _ in stream) == 8
    assert split.example["x"][0, 0] == 1


def test_check_batch_at_is_not_fooled_by_one_array_for_both() -> None:
    class Wrong(RefillingByIndex):
        def batch_at(self, index: int, plan: None) -> Mapping[str, np.ndarray]:
            return filled(index + 1, self.array)

    with pytest.raises(DataError, match="different contents"):
        check_batch_at(Wrong(), values=True)


class Counting:
    """Six batches, of an iterator whose `state()` is its own dict, which it goes on changing."""

    skips_on_reentry = False

    def __len__(self) -> int:
        return 6

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        return CountingIterator(), 0


class CountingIterator:
    def __init__(self) -> None:
        self.position = {"at": 0}

    def __iter__(self) -> CountingIterator:
        return self

    def __next__(self) -> Mapping[str, np.ndarray]:
        if self.position["at"] == 6:
            raise StopIteration
        self.position["at"] += 1
        return {"x": np.zeros((2, 1), np.float32)}

    def state(self) -> dict[str, int]:
        return self.position


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_the_state_of_an_iterator_is_that_after_its_batch(wrap: Any) -> None:
    with inspect_split("train", wrap(Counting())).stream(epoch=1, seed=0) as stream:
        assert [item.state for item in list(stream)] == [{"at": at} for at in range(1, 7)]


class Weighted(Summing):
    weights: Device[Any] = 1.0

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x * self.weights[0], state


def aligned(value: float) -> np.ndarray:
    """Sixteen numbers that begin at a cache line, which XLA:CPU takes for the device's own where it may."""
    raw = np.empty(16 * 4 + 64, np.uint8)
    array: np.ndarray = np.ndarray((16,), np.float32, buffer=raw, offset=-raw.ctypes.data % 64)
    array[:] = value
    return array


def test_an_array_given_to_a_device_field_may_be_changed_afterwards() -> None:
    first, second, batch = aligned(1), aligned(2), {"x": np.ones((1, 1), np.float32)}
    nitro = Nitro(Weighted(weights=first), data={})
    first[:] = 9
    assert (nitro.device_value("weights")[0], nitro.predict(batch)[0, 0]) == (1, 1)
    nitro.set_device(weights=second)
    second[:] = 9
    assert (nitro.device_value("weights")[0], nitro.predict(batch)[0, 0]) == (2, 2)


def test_a_tree_given_as_the_anchor_may_be_changed_afterwards(tmp_path: Path) -> None:
    class Anchored(Summing):
        weight_decay = 0.5

        def decay_anchor(self, group: str) -> Any:
            return "w0"

        def build_model(self, rng: Any) -> Any:
            return (lambda p, s, x: (x * p["w"][0], s)), {"w": jnp.zeros((16, 1))}, {}

        def no_decay(self, path: Any, leaf: Any) -> bool:
            return False

        def loss(self, outputs: Any) -> Any:
            return 0.0 * jnp.mean(outputs)

    tree = {"w": aligned(4)[:, None]}
    nitro = Nitro(Anchored(), data={"train": [{"x": np.ones((2, 1), np.float32)}]}, w0=tree, run_dir=tmp_path)
    tree["w"][:] = 100
    nitro.train()
    np.testing.assert_allclose(np.asarray(nitro.params["w"])[:, 0], 2.0)  # half the way from 0 to 4
