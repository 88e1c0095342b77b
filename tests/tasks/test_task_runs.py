"""Experiments of tasks, trained and exported: what is reported, what recompiles, what leaves."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as oracle

from experiments.mnist_classifier import MnistClassifier
from nitro_cli import ArrayBatches, Checkpointer, Nitro, load_bundle
from nitro_cli.errors import ConfigError, NotFoundError
from nitro_cli.optim import Optim
from nitro_cli.run.saved_predictions import SavePredictions
from nitro_cli.tasks import Categorical, Multilabel, Regression, Task
from tests.tasks.test_task_checks import FEATURES, Linear

ROWS = 44
X = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
IDS = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)
LABELS = (X[:, :3] > 0).astype(np.float32)
TARGETS = {"categorical": IDS, "bernoulli": LABELS, "continuous": X[:, :3]}
TASKS = [Categorical(labels=("a", "b", "c")), Multilabel(3, threshold=0.4), Regression()]


def trained(task, **words):
    """A linear layer after a few steps, and its split for validation: 20 rows in batches of 8."""
    target = TARGETS[task.prediction_kind]
    train = ArrayBatches({"x": X[:24], "target": target[:24]}, 8)
    val = ArrayBatches({"x": X[24:], "target": target[24:]}, 8)
    e = Linear(task=task, train=train, val=val, max_epochs=2)
    return Nitro(e, **words).train(), (X[24:], target[24:])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_a_run_reports_is_scikit_learns_on_its_predictions():
    handle, (x, target) = trained(TASKS[0])
    decided = np.concatenate([handle.predict({"x": x[i : i + 8]}).argmax(1) for i in range(0, 20, 8)])
    row = handle.history[-1]
    assert row["count"] == 20
    assert row["accuracy"] == pytest.approx(oracle.accuracy_score(target, decided))
    assert row["f1"] == pytest.approx(oracle.f1_score(target, decided, average="macro", zero_division=0))
    assert 0 <= row["train/accuracy"] <= 1


def test_metrics_that_keep_every_entry_are_those_of_the_whole_split():
    task = Categorical(metrics=("accuracy", "auroc", {"id": "auroc", "bins": 50, "name": "auroc_50"}))
    handle, (x, target) = trained(task)
    logits = np.concatenate([handle.predict({"x": x[i : i + 8]}) for i in range(0, 20, 8)]).astype(float)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert handle.history[-1]["auroc"] == pytest.approx(oracle.roc_auc_score(target, shares, multi_class="ovr"))
    # A batch of 8 rows of three float32, a target i32 and a truth value each; three batches.
    assert handle.plan.report.as_json()["kept for metrics"] == [{"split": "val", "bytes": 3 * 8 * (3 * 4 + 4 + 1)}]
    assert handle.history[-1]["auroc_50"] == pytest.approx(handle.history[-1]["auroc"], abs=0.1)


def test_another_device_value_of_a_task_compiles_nothing():
    handle, _ = trained(Categorical(class_weights=[1.0, 1.0, 1.0]))
    handle.validate()
    before = len(handle.programs)
    for value in (0.0, 0.1, 0.3):
        handle.set_device(**{"task.label_smoothing": value, "task.class_weights": [1.0, value, 2.0]})
        handle.validate()
    assert len(handle.programs) == before


def test_a_resume_takes_other_metrics():
    task, target = TASKS[0], TARGETS["categorical"]
    sources = {"train": ArrayBatches({"x": X[:24], "target": target[:24]}, 8)}
    sources["val"] = ArrayBatches({"x": X[24:], "target": target[24:]}, 8)
    keep = Checkpointer(keep="last(1)")
    first = Nitro(Linear(task=task, max_epochs=1, **sources), checkpointer=keep).train()
    again = Linear(task=task.replace(metrics=("nll",)), max_epochs=2, **sources)
    resumed = Nitro(again, checkpointer=keep, resume="auto").train()
    assert resumed.run_id == first.run_id
    assert "nll" in resumed.history[2]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.label)
@pytest.mark.parametrize("backend", ["bundle", "onnx"])
def test_the_head_of_a_task_leaves_with_every_backend(task, backend, tmp_path):
    if backend == "onnx":
        runtime = pytest.importorskip("onnxruntime")
    handle, (x, _) = trained(task)
    path = handle.export(backend, dir=tmp_path / "out")
    logits = handle.predict({"x": x[:5]})
    wanted = {"outputs": logits}
    if task.prediction_kind != "continuous":
        wanted["probabilities"] = np.asarray(task.probabilities(jnp.asarray(logits)))
        wanted["decoded"] = np.asarray(task.decode(jnp.asarray(logits)))
    if backend == "onnx":
        session = runtime.InferenceSession(str(path if Path(path).is_file() else next(Path(path).glob("*.onnx"))))
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {"x": x[:5]}), strict=True))
    else:
        found = load_bundle(path)(x=x[:5])
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.asarray(found[name]).dtype == value.dtype
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


def test_mnist_classifier_learns_and_its_task_is_reached_from_a_preset(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])  # where its presets lie, whatever else is known by its name
    e = MnistClassifier.from_preset("smoke", max_epochs=1).replace(**{"task.label_smoothing": 0.1})
    handle = Nitro(e, logger=None, checkpointer=None).train()
    assert handle.history[-1]["accuracy"] > 0.85
    assert "ece" in handle.history[-1]


def test_a_train_split_may_end_in_a_short_batch_and_one_program_serves_the_short_batch_of_evaluation():
    task = Categorical(metrics=("accuracy", "nll", "auroc"))
    sources = {"train": ArrayBatches({"x": X[:21], "target": IDS[:21]}, 8)}
    sources["val"] = ArrayBatches({"x": X[21:], "target": IDS[21:]}, 8)
    handle = Nitro(Linear(task=task, learning_rate=1e-12, **sources)).train()
    assert handle.step == 3
    row = handle.history[1]
    assert row["train_loss"] == pytest.approx(np.log(3), rel=1e-6)
    decided = np.concatenate([handle.predict({"x": X[i : i + 8]}).argmax(1) for i in range(21, ROWS, 8)])
    assert (row["count"], row["accuracy"]) == (23, pytest.approx(oracle.accuracy_score(IDS[21:], decided)))
    before = len(handle.programs)
    handle.validate()
    assert len(handle.programs) == before


def test_an_output_that_is_no_number_makes_every_metric_one():
    logits, target = np.array([[np.nan, 0.0], [2.0, 0.0]], np.float32), np.array([0, 0])
    accumulator = Categorical(2).accumulator()
    accumulator.update(logits, target)
    assert np.isnan(accumulator.result()["accuracy"])
    masked = Categorical(2).accumulator()
    masked.update(logits, target, mask=np.array([False, True]))
    assert masked.result()["accuracy"] == 1.0


class Chosen(Linear):
    """With a rule by name, whose rows of groups are Host values."""

    task: Task = Categorical(3, target="y")
    optim: Optim = Optim("adam", groups=({"match": "**", "scale": 2.0},))
    monitor = ("f1", "max")

    def build_data(self, dist):
        rows = {"x": np.ones((8, FEATURES), np.float32), "y": np.arange(8, dtype=np.int32) % 3}
        return {"train": ArrayBatches(rows, 4), "val": ArrayBatches(rows, 4)}


def test_an_experiment_with_an_optimizer_by_name_exports(tmp_path):
    handle = Nitro(Chosen(), logger=None, checkpointer=None, run_dir=tmp_path)
    x = np.ones((2, FEATURES), np.float32)
    served = load_bundle(handle.export("bundle"))(x)
    np.testing.assert_allclose(served["outputs"], handle.predict({"x": x}), rtol=1e-5)


def test_a_monitor_that_the_task_does_not_report_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="accuracyy") as caught:
        Nitro(Chosen(), monitor=("accuracyy", "max"), run_dir=tmp_path)
    assert caught.value.nearest == ("accuracy",)


@pytest.mark.parametrize("odd", [{"splits": ("tst",)}, {"fields": ("age",)}])
def test_predictions_that_cannot_be_saved_are_refused_before_the_first_step(odd, tmp_path):
    handle = Nitro(Chosen(), callbacks=(SavePredictions(**odd),), run_dir=tmp_path)
    with pytest.raises((ConfigError, NotFoundError), match=r"tst|age") as caught:
        handle.train()
    assert "save_predictions" in caught.value.where
    assert handle.step == 0
