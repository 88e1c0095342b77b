"""What tasks report: metrics over the entries that count, in any batches; and how tasks are declared."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as oracle

from nitro_cli import Experiment, Mean, Sum
from nitro_cli.errors import ConfigError
from nitro_cli.experiment import HookTable, graphconst_fingerprint
from nitro_cli.metrics import F1, Accuracy, Auroc, Confusion, Nll, TopK
from nitro_cli.tasks import Categorical, Multilabel, Regression, SupervisedTask, Task

RNG = np.random.default_rng(0)
ROWS, CLASSES = 50, 4
LOGITS = np.round(RNG.normal(size=(ROWS, CLASSES)), 1).astype(np.float32)
IDS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
MASK = RNG.random(ROWS) < 0.7
EVERYTHING = Categorical(metrics=(Accuracy(), F1(average="weighted"), Auroc(), Nll(), TopK(k=2), Confusion()))


def fed(task, size, rows=slice(None), as_array=jnp.asarray):
    """An accumulator that was given some rows in batches."""
    total = task.accumulator()
    logits, ids, mask = LOGITS[rows], IDS[rows], MASK[rows]
    for start in range(0, len(ids), size):
        cut = slice(start, start + size)
        total.update(as_array(logits[cut]), as_array(ids[cut]), mask=as_array(mask[cut]))
    return total


def test_metrics_are_scikit_learns_of_what_counts_in_any_batches_and_orders():
    target, shares = IDS[MASK], np.exp(LOGITS[MASK].astype(float))
    shares /= shares.sum(1, keepdims=True)
    wanted = {
        "count": MASK.sum(),
        "accuracy": oracle.accuracy_score(target, LOGITS[MASK].argmax(1)),
        "f1": oracle.f1_score(target, LOGITS[MASK].argmax(1), average="weighted"),
        "auroc": oracle.roc_auc_score(target, shares, multi_class="ovr"),
        "nll": oracle.log_loss(target, shares),
        "confusion": oracle.confusion_matrix(target, LOGITS[MASK].argmax(1)),
    }
    whole = fed(EVERYTHING, ROWS).result()
    in_numpy = fed(EVERYTHING, ROWS, as_array=np.asarray).result()
    pieces = fed(EVERYTHING, 7, slice(30, None))
    pieces.merge(fed(EVERYTHING, 20, slice(30)))
    assert list(whole) == ["count", "accuracy", "f1", "auroc", "nll", "top_k", "confusion"]
    for name, value in wanted.items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(in_numpy[name], value, rtol=1e-12, err_msg=name)
        # An entry's logarithm may differ by a digit where XLA computes it in a batch of another size.
        tolerance = 1e-7 if name == "nll" else 1e-12
        np.testing.assert_allclose(pieces.result()[name], whole[name], rtol=tolerance, err_msg=name)


def test_padding_counts_for_nothing():
    total = EVERYTHING.accumulator()
    padded = np.concatenate([LOGITS, LOGITS[-1:].repeat(6, 0)]), np.concatenate([IDS, IDS[-1:].repeat(6)])
    total.update(*map(jnp.asarray, padded), valid=jnp.arange(ROWS + 6) < ROWS)
    alone = EVERYTHING.accumulator()
    alone.update(jnp.asarray(LOGITS), jnp.asarray(IDS))
    np.testing.assert_equal(total.result(), alone.result())


def test_an_accumulator_of_another_declaration_is_not_merged():
    with pytest.raises(ConfigError, match="different declarations"):
        Categorical().accumulator().merge(Categorical(metrics=(Accuracy(),)).accumulator())


def test_without_an_entry_the_count_is_0_and_every_metric_none_with_the_reason():
    total = Categorical(ignore_index=-1).accumulator()
    total.update(jnp.asarray(LOGITS), jnp.full(ROWS, -1))
    assert total.result() == {"count": 0, "accuracy": None, "f1": None, "recall": None, "precision": None}
    assert set(total.reasons.values()) == {"no entry counts"}


def test_an_undefined_metric_names_the_classes_by_their_labels():
    task = Categorical(metrics=(Auroc(),), labels=("a", "b", "c", "never"))
    total = task.accumulator()
    total.update(jnp.asarray(LOGITS), jnp.asarray(np.minimum(IDS, 2)))
    assert total.result()["auroc"] is None
    assert total.reasons == {"auroc": "undefined for never: every row, or none, has it as target"}


def test_labels_are_decided_at_the_threshold_and_masked_by_nan():
    logits = LOGITS[:, :3]
    target = np.where(RNG.random((ROWS, 3)) < 0.2, np.nan, IDS[:, None] == np.arange(3)).astype(np.float32)
    there = ~np.isnan(target)
    task = Multilabel(3, threshold=0.7)
    total = task.accumulator()
    total.update(jnp.asarray(logits), jnp.asarray(target))
    decided = 1 / (1 + np.exp(-logits)) >= 0.7
    found = total.result()
    assert found["element_accuracy"] == pytest.approx(oracle.accuracy_score(target[there], decided[there]))
    each = [oracle.f1_score(target[there[:, i], i], decided[there[:, i], i]) for i in range(3)]
    assert found["f1"] == pytest.approx(np.mean(each))
    np.testing.assert_array_equal(task.decode(jnp.asarray(logits)), decided)


def test_values_are_scikit_learns_and_one_value_needs_no_axis():
    total = Regression().accumulator()
    total.update(jnp.asarray(LOGITS[:, 0]), jnp.asarray(LOGITS[:, 1:2]))
    assert total.result()["mse"] == pytest.approx(oracle.mean_squared_error(LOGITS[:, 1], LOGITS[:, 0]), rel=1e-6)


class Classifier(Experiment):
    """Three of the four required hooks; the task gives the rest."""

    task: Task = Categorical(CLASSES, target="y", mask="counts", weight="w")

    def build_data(self, dist):
        return {}

    def build_model(self, rng):
        return None

    def forward(self, model, params, state, *, x):
        return x, state


def test_a_task_supplies_the_hooks_that_follow_from_it():
    e = Classifier()
    table = HookTable(e)
    supplied = {name: owner for name, owner in table.owners().items() if owner.startswith("task")}
    assert set(supplied) >= {"loss", "metrics", "finalize_metrics", "train_metrics"}
    batch = {"x": LOGITS, "y": jnp.asarray(IDS), "counts": jnp.asarray(MASK), "w": jnp.ones(ROWS)}
    term = table.call(e, "loss", jnp.asarray(LOGITS), batch=batch)["cross_entropy"]
    assert float(term.denominator) == MASK.sum()
    found = table.call(e, "metrics", jnp.asarray(LOGITS), batch=batch)
    assert isinstance(found["count"], Sum)
    line = table.call(e, "train_metrics", jnp.asarray(LOGITS), batch=batch)
    assert isinstance(line["accuracy"], Mean)
    assert int(line["accuracy"].count) == MASK.sum()
    assert (table.residency(e, "metrics"), table.residency(e, "train_metrics")) == ("device", "device")


def test_a_metrics_hook_of_the_class_runs_where_hooks_of_classes_do():
    class Own(Classifier):
        def metrics(self, outputs, *, y):
            return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}

    table = HookTable(Own())
    assert table.residency(Own(), "metrics") == "host"
    assert table.residency(Own(), "train_metrics") == "device"


def test_metrics_may_change_on_a_resume_and_what_trains_may_not():
    same = graphconst_fingerprint(Classifier())
    other = Classifier().replace(**{"task.metrics": (Accuracy(),)})
    assert graphconst_fingerprint(other) == same
    assert graphconst_fingerprint(Classifier().replace(**{"task.ignore_index": 3})) != same


def test_tables_name_tasks_and_metrics_and_their_device_fields_have_dotted_names():
    table = {"kind": "categorical", "num_classes": 4, "metrics": ["accuracy", {"id": "top_k", "k": 3, "name": "top_3"}]}
    e = Classifier(task=table)
    assert [metric.label for metric in e.task.metrics] == ["accuracy", "top_3"]
    assert e.replace(**{"task.label_smoothing": 0.1}).task.label_smoothing == 0.1
    assert e.replace(**{"task.metrics.top_3.k": 2}).task.metrics[1].k == 2
    assert Classifier(task="regression").task == Regression()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"kind": "categorical", "metrics": ["mse"]}, "mse is no metric of categorical"),
        ({"kind": "categorical", "metrics": ["top_k", "top_k"]}, "two metrics are called top_k"),
        ({"kind": "categorical", "train_metrics": ["f1"]}, "f1 is no mean over entries"),
        ({"kind": "categorical", "metrics": ["f2"]}, "no metric f2"),
        ({"kind": "categorical", "labels": ["a", "a"]}, "'a' stands twice"),
        ({"kind": "categorcal"}, "no task categorcal"),
        ({"kind": "regression", "loss": "cubic"}, "cubic"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(table, told):
    with pytest.raises(ConfigError) as error:
        Classifier(task=table)
    assert told in str(error.value)


def test_a_further_task_follows_the_same_protocol():
    class Never(SupervisedTask):
        prediction_kind = "categorical"

    with pytest.raises(TypeError, match=r"abstract|terms"):
        Never().terms(LOGITS, IDS)


def test_tasks_are_declared_without_jax():
    code = """
import sys
from nitro_cli.tasks import TASKS, Categorical
for entry in TASKS.entries():
    TASKS.find(entry.id)()
task = Categorical(3)
import numpy as np
total = task.accumulator()
total.update(np.eye(3), np.array([0, 1, 1]))
print([e.id for e in TASKS.entries()], round(total.result()["accuracy"], 3), "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['categorical', 'causal_lm', 'multilabel', 'regression'] 0.667 False"
