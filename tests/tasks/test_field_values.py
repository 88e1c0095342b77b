"""Values that a task's fields cannot hold are refused where they are given, and so are metrics that fit no output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.errors import ConfigError, DataError, ScheduleError
from nitro_cli.metrics import Accuracy, TopK
from nitro_cli.optim import linear
from nitro_cli.tasks import Categorical, Multilabel, Regression, Task

NAN = float("nan")


class Linear(Experiment):
    """A linear layer of three columns."""

    task: Task = Categorical()
    max_epochs = 1
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
        return {"train": ArrayBatches({"x": x, "label": np.arange(12, dtype=np.int32) % 3}, 4)}

    def build_model(self, rng: Any) -> Any:
        return lambda p, state, x: (x @ p["w"], state), {"w": jnp.zeros((4, 3))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Categorical(label_smoothing=1.01), "label_smoothing"),
        (lambda: Categorical(label_smoothing=-0.01), "label_smoothing"),
        (lambda: Categorical(label_smoothing=NAN), "label_smoothing"),
        (lambda: Categorical(class_weights=(1.0, -2.0, 1.0)), "class_weights.*finite and 0 or more, got -2"),
        (lambda: Categorical(class_weights=np.array([1.0, NAN])), "class_weights.*got nan"),
        (lambda: Categorical(class_weights=[[1.0]]), "class_weights.*2 axes"),
        (lambda: Multilabel(pos_weight=float("inf")), "pos_weight"),
        (lambda: Multilabel(pos_weight=(-1.0,)), "pos_weight"),
        (lambda: Multilabel(threshold=1.5), "threshold"),
        (lambda: Multilabel(threshold=NAN), "threshold"),
        (lambda: Regression(delta=0.0), "delta"),
        (lambda: Regression(delta=float("inf")), "delta"),
    ],
)
def test_a_value_out_of_range_is_refused_at_construction(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


def test_the_ends_of_a_range_are_taken() -> None:
    assert Categorical(label_smoothing=1, class_weights=(0.0, 1.0)).label_smoothing == 1
    assert Multilabel(threshold=0.0).threshold == 0


def test_a_live_handle_refuses_it_too_and_keeps_what_it_had() -> None:
    nitro = Nitro(Linear(task=Categorical(class_weights=(1.0, 1.0, 1.0))))
    for name, value in (("task.label_smoothing", 2.0), ("task.class_weights", (1.0, -1.0, 1.0))):
        with pytest.raises(ConfigError, match=name.partition(".")[2]):
            nitro.set_device(**{name: value})
    nitro.set_device(**{"task.label_smoothing": 0.25})


def test_a_schedule_that_leaves_the_range_is_refused_before_any_step() -> None:
    with pytest.raises(ScheduleError, match=r"label_smoothing.*1\.") as error:
        Nitro(Linear(max_epochs=2), schedules={"task.label_smoothing": linear(0.5, 1.5, 6)})
    assert "less than or equal to 1" in str(error.value)
    Nitro(Linear(), schedules={"task.label_smoothing": linear(0.0, 1.0, 3)})


def test_top_k_of_fewer_classes_is_refused_by_the_declaration_or_else_by_the_output() -> None:
    with pytest.raises(ConfigError, match="k is 4, and there are 3 classes"):
        Categorical(3, metrics=(TopK(k=4),))
    with pytest.raises(ConfigError, match="k is 3, and there are 2 classes"):
        Categorical(labels=("a", "b"), train_metrics=(TopK(k=3),))
    with pytest.raises(DataError, match="k is 4, and there are 3 classes"):
        Nitro(Linear(task=Categorical(metrics=(TopK(k=4),))))
    assert Categorical(3, metrics=(TopK(k=3),)).metrics[0].label == "top_k"


def test_an_accumulator_refuses_what_training_would() -> None:
    total = Categorical(3, metrics=(Accuracy(),), ignore_index=-1).accumulator()
    outputs = np.eye(3)
    with pytest.raises(DataError, match="the target is 7") as error:
        total.update(outputs, np.array([0, 7, 2]))
    assert error.value.where == "row 1 of the batch"
    with pytest.raises(DataError, match="the output has 2 classes"):
        total.update(np.zeros((3, 2)), np.array([0, 1, 1]))
    with pytest.raises(DataError, match="mask"):
        total.update(outputs, np.array([0, 1, 2]), mask=np.array([1.0, 0.0, 1.0]))
    # What is refused is not counted, and what padding or a mask hides may be anything.
    total.update(outputs, np.array([0, 9, 2]), valid=np.array([True, False, True]))
    total.update(outputs, np.array([0, 1, 9]), mask=np.array([True, True, False]))
    assert total.result() == {"count": 4, "accuracy": 1.0}
    with pytest.raises(DataError, match="adds up to"):
        total.update(outputs, np.full((3, 3), 0.5))
    with pytest.raises(DataError, match="0 to 1"):
        Multilabel(3).accumulator().update(outputs, np.full((3, 3), 1.5))
