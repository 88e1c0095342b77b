"""A pass over a split that stays where a CPU reads it takes several batches a call and reports the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro, Prefetch, set_progress_reporter
from nitro_cli.metrics import F1, Accuracy, Auroc, Nll
from nitro_cli.tasks import Categorical, Task

ROWS, CLASSES = 603, 3


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    return {"x": (np.eye(CLASSES)[label] + rng.normal(size=(ROWS, CLASSES))).astype(np.float32), "label": label}


class Net(Experiment):
    """Logits are the inputs, scaled."""

    task: Task = Categorical(CLASSES, metrics=(Accuracy(), F1(), Nll()))
    kept: bool = True
    batch_size: int = 8
    convolves: bool = False
    eval_loss = True
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        source = ArrayBatches(rows(), self.batch_size)
        return {"train": ArrayBatches(rows(), 9), "test": source if self.kept else Prefetch(source)}

    def build_model(self, rng: jax.Array) -> Any:
        convolves = self.convolves

        def model(params: Any, state: Any, x: jax.Array) -> Any:
            if convolves:
                x = jax.lax.conv_general_dilated(x[:, None, :], jnp.ones((1, 1, 1)), (1,), "VALID")[:, 0]
            return x * params["scale"], state

        return model, {"scale": jnp.full((), 1.5)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)


class Counted:
    """A reporter that counts units of passes."""

    def __init__(self) -> None:
        self.units: list[int] = []

    def step(self, n: int, values: Any) -> None:
        self.units.append(n)

    def nothing(self, *args: Any) -> None: ...

    begin = end = phase = note = line = done = nothing


@pytest.mark.parametrize("size", [1, 8, 200, 603, 1000])
def test_it_reports_what_batches_one_by_one_do_short_last_ones_included(size: int) -> None:
    kept, streamed = (Nitro(Net(kept=kept, batch_size=size)).evaluate("test") for kept in (True, False))
    assert kept.keys() == streamed.keys()
    assert kept["count"] == ROWS
    assert kept == pytest.approx(streamed, rel=1e-6)


def test_several_batches_are_one_call_and_a_second_pass_compiles_nothing(units: Counted) -> None:
    nitro = Nitro(Net())
    first = nitro.evaluate("test")
    programs = len(nitro.programs)
    assert sum(units.units) == -(-ROWS // 8)
    assert max(units.units) > 1
    assert nitro.evaluate("test") == first
    assert len(nitro.programs) == programs


@pytest.mark.parametrize("e", [Net(convolves=True), Net(task=Categorical(CLASSES, metrics=(Auroc(),)))])
def test_a_convolution_and_a_metric_of_rows_go_batch_by_batch(e: Net, units: Counted) -> None:
    Nitro(e).evaluate("test")
    assert set(units.units) == {1}


def test_it_reads_the_weights_and_device_values_of_the_moment() -> None:
    nitro = Nitro(Net(task=Categorical(CLASSES, metrics=(Nll(),))))
    before = nitro.evaluate("test")
    nitro.set_device(**{"task.label_smoothing": 0.5})
    after = nitro.evaluate("test")
    assert after["nll"] == before["nll"]
    assert after != before


@pytest.fixture
def units() -> Iterator[Counted]:
    counted = Counted()
    previous = set_progress_reporter(counted)
    yield counted
    set_progress_reporter(previous)
