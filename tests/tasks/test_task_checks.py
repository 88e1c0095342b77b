"""What a task refuses of data and model before any step: shapes, widths, values; and a check of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, GraphConst, Nitro
from nitro_cli.errors import ConfigError, DataError, NitroWarning
from nitro_cli.experiment import BatchProblem, Host
from nitro_cli.tasks import Categorical, Multilabel, Regression, Task

ROWS, FEATURES = 24, 4
X = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
IDS = np.arange(ROWS, dtype=np.int32) % 3


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


class Streamed:
    """Batches that are there already, which are not kept on the device."""

    def __init__(self, arrays: dict[str, np.ndarray], size: int = 8) -> None:
        self.batches = [{k: v[i : i + size] for k, v in arrays.items()} for i in range(0, ROWS, size)]

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Linear(Experiment):
    """A linear layer on given arrays."""

    task: Task = Categorical()
    train: Host[Any] = None
    val: Host[Any] = None
    width: GraphConst[int] = 3
    max_epochs = 1
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {name: source for name, source in (("train", self.train), ("val", self.val)) if source is not None}

    def build_model(self, rng: Any) -> Any:
        return lambda p, state, x: (x @ p["kernel"], state), {"kernel": jnp.zeros((FEATURES, self.width))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)


def refused(task: Task, source: Any, kind: type = DataError, **fields: Any) -> Any:
    """The error of setting up a handle, or else of training it."""
    with pytest.raises(kind) as error:
        Nitro(Linear(task=task, train=source, **fields)).train()
    return error.value


def arrays(**fields: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": X, **fields}


def with_value(at: int, value: Any, base: np.ndarray = IDS) -> np.ndarray:
    changed = base.copy()
    changed[at] = value
    return changed


def test_a_class_out_of_range_is_refused_with_split_batch_row_and_value_before_any_step():
    error = refused(Categorical(), ArrayBatches(arrays(label=with_value(10, 3)), 8))
    assert error.what == "the target is 3"
    assert error.where == "split `train`, batch 1 of epoch 1, row 10 of the arrays"
    assert error.why == "there are 3 classes, 0 to 2"
    error = refused(Categorical(), Streamed(arrays(label=with_value(3, -1))))
    assert (error.what, error.where) == ("the target is -1", "split `train`, batch 0, row 3")
    error = refused(Categorical(), Streamed(arrays(label=with_value(21, 7))))
    assert (error.what, error.where) == ("the target is 7", "split `train`, batch 2, row 5")


def test_what_the_index_or_the_mask_leaves_out_may_be_anything():
    mask = np.arange(ROWS) != 10
    for task, extra in ((Categorical(ignore_index=-1), {}), (Categorical(mask="there"), {"there": mask})):
        source = Streamed(arrays(label=with_value(10, -1), **extra))
        assert Nitro(Linear(task=task, train=source)).train().step == 3


SHARES = np.full((ROWS, 3), 1 / 3, np.float32)
LABELS = (IDS[:, None] == np.arange(3)).astype(np.float32)


@pytest.mark.parametrize(
    ("task", "target", "what"),
    [
        (Categorical(), with_value(3, [0.5, 0.5, 0.001], SHARES), "the target adds up to 1.00"),
        (Categorical(), with_value(3, [1.5, -0.5, 0.0], SHARES), "the target is -0.5 at [1]"),
        (Multilabel(), with_value(3, [0, 1.5, 1], LABELS), "the target is 1.5 at [1]"),
        (Multilabel(), with_value(3, [0, np.inf, 1], LABELS), "the target is inf at [1]"),
        (Regression(), with_value(3, [0, 1, -np.inf], LABELS), "the target is -inf at [2]"),
    ],
)
def test_a_target_that_cannot_be_one_is_refused(task, target, what):
    error = refused(task, Streamed(arrays(target=target)))
    assert error.what.startswith(what)
    assert error.where == "split `train`, batch 0, row 3"


def test_nan_is_a_target_that_is_not_there():
    for task in (Categorical(), Multilabel(), Regression()):
        base = SHARES if isinstance(task, Categorical) else LABELS
        trained = Nitro(Linear(task=task, train=Streamed(arrays(target=with_value(3, np.nan, base))))).train()
        assert np.isfinite(trained.history[1]["train_loss"])


@pytest.mark.parametrize(
    ("task", "fields", "what"),
    [
        (Categorical(4), {"label": IDS}, "the output has 3 classes, num_classes says 4"),
        (Categorical(labels=("a", "b")), {"label": IDS}, "the output has 3 classes, labels says 2"),
        (Categorical(class_weights=[1.0, 2.0]), {"label": IDS}, "the output has 3 classes, class_weights says 2"),
        (Categorical(), {"label": IDS.astype(np.float32)}, "the target is float32[8]"),
        (Categorical(class_axis=2), {"label": IDS}, "the output has the shape [8, 3], without a class axis 2"),
        (Multilabel(2), {"label": LABELS}, "the output has 3 labels, num_labels says 2"),
        (Regression(), {"label": LABELS[:, :2]}, "the target is float32[8, 2], the output has 3 targets"),
        (Categorical(mask="m"), {"label": IDS, "m": IDS}, "the mask m is int32[8]"),
        (Categorical(weight="w"), {"label": IDS, "w": -X[:, 0]}, "the weight w is -"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_before_a_run_exists(task, fields, what):
    with pytest.raises(DataError) as error:
        Nitro(Linear(task=task, train=Streamed(arrays(**fields))))
    assert error.value.what.startswith(what)
    assert "split `train`, batch 0" in error.value.where
    assert not list(Path.cwd().iterdir())


def test_every_split_is_looked_at():
    fine = Streamed(arrays(label=IDS))
    error = refused(Categorical(), fine, val=Streamed(arrays(label=with_value(2, 9))))
    assert error.where == "split `val`, batch 0, row 2"
    assert refused(Categorical(target="y"), fine, ConfigError).what.startswith("the hook loss declares 'y'")


class Checked(Linear):
    """A check of one's own, without any task."""

    task: Host[Any] = None  # type: ignore[assignment]

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return jnp.mean((outputs[:, 0] - y) ** 2)

    def check_batch(self, outputs: Any, *, y: Any) -> BatchProblem | None:
        assert isinstance(outputs, jax.ShapeDtypeStruct)
        wrong = np.flatnonzero(y < 0)
        return BatchProblem(f"y is {y[wrong[0]]}", int(wrong[0])) if len(wrong) else None


def test_an_experiment_may_check_its_batches_itself():
    with pytest.raises(DataError, match=r"y is -2.0\n  where: split `train`, batch 1, row 4"):
        Nitro(Checked(train=Streamed(arrays(y=with_value(12, -2, X[:, 0] ** 2))))).train()


def test_a_pass_without_an_entry_reports_none_with_the_reason_and_the_row_goes_without():
    nothing = Streamed(arrays(label=np.full(ROWS, -1, np.int32)))
    e = Linear(task=Categorical(ignore_index=-1), train=Streamed(arrays(label=IDS)), val=nothing)
    with pytest.warns(NitroWarning, match="'f1' has no value: no entry counts"):
        handle = Nitro(e).train()
    assert handle.history[1].keys() >= {"count", "train_loss"}
    assert "f1" not in handle.history[1]
    with pytest.warns(NitroWarning, match="'accuracy' has no value"):
        assert handle.validate() == {"count": 0, "accuracy": None, "f1": None, "recall": None, "precision": None}
