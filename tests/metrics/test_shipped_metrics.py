"""Every shipped metric, traced, against scikit-learn: with ties, absent classes, masks, in any batches."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as oracle

import nitro_cli.programs.eval_step  # noqa: F401 - where JAX learns to take the values of metrics apart
from nitro_cli.errors import ConfigError
from nitro_cli.metrics import METRICS, Max, Metric, Min, SplitAccumulator, Sum, Undefined, register_metric, with_classes
from nitro_cli.metrics.totals import precise_total, square_total

CLASSES = 5
ROWS = 90


def drawn(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Targets, what is read of outputs, and which entries count; class 3 is no target, and outputs have ties."""
    rng = np.random.default_rng(seed)
    width = CLASSES if kind == "categorical" else 3
    values = np.round(rng.normal(size=(ROWS, width)) * 2, 1).astype(np.float32)
    if kind == "categorical":
        target = rng.choice([0, 1, 2, 4], ROWS).astype(np.int32)
        valid = rng.random(ROWS) < 0.8
        shares = np.exp(values) / np.exp(values).sum(1, keepdims=True)
        decoded = values.argmax(1).astype(np.int32)
    else:
        target = (rng.random((ROWS, width)) < 0.4).astype(np.float32)
        valid = rng.random((ROWS, width)) < 0.8
        shares, decoded = 1 / (1 + np.exp(-values)), (values >= 0).astype(np.int32)
    if kind == "continuous":
        target = (values + rng.normal(size=values.shape) + [30, 0, -3]).astype(np.float32)
        values, decoded = values + np.float32([30, 0, -3]), values
    return {"target": target, "values": values, "decoded": decoded, "probabilities": shares, "valid": valid}


def metrics_of_kind(kind: str) -> dict[str, Metric]:
    found = {}
    for entry in METRICS.entries():
        cls = METRICS.find(entry.id)
        if cls.is_of(kind) and entry.import_path.startswith("nitro_cli."):
            found[entry.id] = with_classes(cls(), CLASSES if kind == "categorical" else 3)
    for average in ("weighted", "micro"):
        if kind != "continuous":
            found |= {f"{n}_{average}": found[n].replace(average=average) for n in ("f1", "precision", "recall")}
    return found


def in_batches(metrics: dict[str, Metric], data: dict[str, np.ndarray], size: int, order=None) -> dict[str, object]:
    """The values by sums over batches of one padded size, in any order; of the whole where a metric keeps."""

    @jax.jit
    def totals(batch):
        return {
            name: {
                key: x if isinstance(x, Max | Min) else Sum(x)
                for key, x in metric.sums(batch["target"], batch[metric.reads], batch["valid"]).items()
            }
            for name, metric in metrics.items()
            if not metric.keeps
        }

    total = SplitAccumulator()
    starts = list(range(0, ROWS, size))
    for start in order(starts) if order else starts:
        cut = {k: v[start : start + size] for k, v in data.items()}
        batch = {k: np.concatenate([v, np.repeat(v[-1:], size - len(v), 0)]) for k, v in cut.items()}
        batch["valid"][len(cut["valid"]) :] = False
        total.add(jax.tree.map(np.asarray, totals({k: jnp.asarray(v) for k, v in batch.items()})))
    sums = total.result()
    found = {name: metrics[name].value({k: np.asarray(v) for k, v in held.items()}) for name, held in sums.items()}
    kept = {n: m.of(data["target"], data[m.reads], data["valid"]) for n, m in metrics.items() if m.keeps}
    return found | kept


def wanted_classes(data: dict[str, np.ndarray]) -> dict[str, object]:
    """scikit-learn's, of the entries that count."""
    at = data["valid"]
    target, decoded, values = data["target"][at], data["decoded"][at], data["values"][at].astype(np.float64)
    shares = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    found = {
        "accuracy": oracle.accuracy_score(target, decoded),
        "balanced_accuracy": oracle.recall_score(target, decoded, labels=np.unique(target), average="macro"),
        "mcc": oracle.matthews_corrcoef(target, decoded),
        "confusion": oracle.confusion_matrix(target, decoded, labels=range(CLASSES)),
        "nll": oracle.log_loss(target, shares, labels=range(CLASSES)),
        "brier": oracle.brier_score_loss(target, shares, labels=range(CLASSES), scale_by_half=False),
        "top_k": 1.0,  # of five classes the five largest are all
        "ece": binned_error(shares.max(1), target == decoded),
    }
    for average, suffix in (("macro", ""), ("weighted", "_weighted"), ("micro", "_micro")):
        for name in ("f1", "precision", "recall"):
            score = getattr(oracle, f"{name}_score")
            found[name + suffix] = score(target, decoded, average=average, zero_division=0)
    return found


def binned_error(confidence: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """The expected calibration error by its definition, bin by bin."""
    error = 0.0
    for i in range(bins):
        inside = (confidence >= i / bins) & ((confidence < (i + 1) / bins) | (i == bins - 1))
        if inside.any():
            error += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    return error / len(confidence)


def wanted_labels(data: dict[str, np.ndarray]) -> dict[str, object]:
    at, target, decoded = data["valid"], data["target"], data["decoded"]
    shares = 1 / (1 + np.exp(-data["values"].astype(np.float64)))
    columns = [(target[at[:, i], i], decoded[at[:, i], i], shares[at[:, i], i]) for i in range(3)]
    rows = at.any(1)
    found = {
        "subset_accuracy": np.mean([(target[r] == decoded[r])[at[r]].all() for r in np.flatnonzero(rows)]),
        "element_accuracy": oracle.accuracy_score(target[at], decoded[at]),
        "nll": oracle.log_loss(target[at], shares[at]),
        "brier": oracle.mean_squared_error(target[at], shares[at]),
        "ece": binned_error(shares[at], target[at]),
        "auroc": np.mean([oracle.roc_auc_score(y, p) for y, _, p in columns]),
        "average_precision": np.mean([oracle.average_precision_score(y, p) for y, _, p in columns]),
    }
    support = [y.sum() for y, _, _ in columns]
    flat, made = np.concatenate([y for y, _, _ in columns]), np.concatenate([d for _, d, _ in columns])
    for name in ("f1", "precision", "recall"):
        score = getattr(oracle, f"{name}_score")
        each = [score(y, d) for y, d, _ in columns]
        found |= {name: np.mean(each), f"{name}_weighted": np.average(each, weights=support)}
        found[f"{name}_micro"] = score(flat, made)
    return found


def wanted_values(data: dict[str, np.ndarray]) -> dict[str, object]:
    at = data["valid"]
    target, values = data["target"].astype(np.float64), data["values"].astype(np.float64)
    return {
        "mse": oracle.mean_squared_error(target[at], values[at]),
        "rmse": oracle.root_mean_squared_error(target[at], values[at]),
        "mae": oracle.mean_absolute_error(target[at], values[at]),
        "max_error": oracle.max_error(target[at], values[at]),
        "r2": np.mean([oracle.r2_score(target[at[:, i], i], values[at[:, i], i]) for i in range(3)]),
    }


WANTED = {"categorical": wanted_classes, "bernoulli": wanted_labels, "continuous": wanted_values}


@pytest.mark.parametrize("kind", WANTED)
def test_every_shipped_metric_is_scikit_learns_and_does_not_depend_on_the_batches(kind):
    data, metrics = drawn(kind), metrics_of_kind(kind)
    whole = in_batches(metrics, data, ROWS)
    wanted = WANTED[kind](data)
    undefined = {name for name, value in whole.items() if isinstance(value, Undefined)}
    assert undefined == ({"auroc", "average_precision"} if kind == "categorical" else set())
    assert whole.keys() - undefined == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(whole[name], value, rtol=2e-6, err_msg=name)
    for size, order in ((7, None), (16, reversed)):
        parts = in_batches(metrics, data, size, order)
        for name in wanted:
            np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12, err_msg=name)


def test_one_against_the_rest_is_scikit_learns_and_says_for_which_class_it_is_undefined():
    data = drawn("categorical")
    auroc, precision = METRICS.find("auroc")(), METRICS.find("average_precision")()
    found = auroc.of(data["target"], data["probabilities"], data["valid"])
    assert (found.classes, found.told("abcde")) == ((3,), "undefined for d: every row, or none, has it as target")
    data["target"][:4] = 3
    at = data["valid"]
    target, shares = data["target"][at], data["probabilities"][at].astype(np.float64)
    shares /= shares.sum(1, keepdims=True)
    wanted = oracle.roc_auc_score(target, shares, multi_class="ovr")
    assert auroc.of(data["target"], data["probabilities"], at) == pytest.approx(wanted, abs=1e-12)
    wanted = oracle.average_precision_score(np.eye(CLASSES)[target], shares)
    assert precision.of(data["target"], data["probabilities"], at) == pytest.approx(wanted, abs=1e-12)


def test_bins_bound_what_a_ranking_keeps_and_are_exact_where_they_tell_all_scores_apart():
    data = drawn("bernoulli")
    data["probabilities"] = np.round(data["probabilities"], 1) * np.float32(0.96) + np.float32(0.02)
    for id in ("auroc", "average_precision"):
        cls = METRICS.find(id)
        binned, kept = cls(bins=25), cls()
        assert (binned.keeps, kept.keeps) == (False, True)
        found = in_batches({"m": binned}, data, 16)["m"]
        assert found == pytest.approx(kept.of(data["target"], data["probabilities"], data["valid"]), abs=1e-12)


def test_top_k_is_scikit_learns_for_every_k():
    data = drawn("categorical")
    at = data["valid"]
    # Of equal scores scikit-learn lets the higher class go first: in reverse that is the lower one.
    backwards, mirrored = data["values"][at][:, ::-1], CLASSES - 1 - data["target"][at]
    for k in range(1, CLASSES):
        found = in_batches({"m": METRICS.find("top_k")(k=k)}, data, 16)["m"]
        assert found == oracle.top_k_accuracy_score(mirrored, backwards, k=k, labels=range(CLASSES))


def test_a_floor_keeps_the_likelihood_of_the_impossible_finite_and_the_logarithm_exact_below_it():
    nll = METRICS.find("nll")()
    sure = jnp.array([[40.0, 0.0], [20.0, 0.0]])
    assert nll.of(np.array([1]), np.array([[40.0, 0.0]])) == pytest.approx(-np.log(1e-12))
    sums = nll.sums(jnp.array([1, 1]), sure, jnp.array([False, True]))
    assert nll.value(jax.tree.map(np.asarray, sums)) == pytest.approx(20 + np.log1p(np.exp(-20)))


def test_a_total_in_single_precision_keeps_twice_its_digits():
    x = np.random.default_rng(0).normal(size=20_001).astype(np.float32) * 1e4
    exact = float(np.sum(x.astype(np.longdouble)))
    assert float(np.asarray(jax.jit(precise_total)(x), np.float64).sum()) == pytest.approx(exact, rel=1e-12)
    exact = float(np.sum(x.astype(np.longdouble) ** 2))
    assert float(np.asarray(jax.jit(square_total)(x), np.float64).sum()) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("id", "target", "read", "reason"),
    [
        ("mcc", [1, 1], [0, 1], "one class throughout"),
        ("r2", [[0.1], [0.1]], [[0.0], [1.0]], "constant"),
        ("f1", [[0.25], [1.0]], [[0], [1]], "neither 0 nor 1"),
        ("auroc", [[0.25], [1.0]], [[0.1], [0.9]], "neither 0 nor 1"),
        ("accuracy", [], [], "no entry has a target"),
    ],
)
def test_an_undefined_metric_says_why(id, target, read, reason):
    found = METRICS.find(id)().of(np.asarray(target), np.asarray(read))
    assert reason in found.reason
    assert found.instead == (0.0 if id == "mcc" else None)


def test_a_metric_of_ones_own_is_found_by_its_id_with_its_options():
    @register_metric("within_of_a_test", replace=True)
    class Within(Metric):
        reads, mode = "values", "max"
        tolerance: float = 1.0

        def sums(self, target, prediction, valid):
            return {"hit": jnp.sum(valid & (abs(target - prediction) <= self.tolerance)), "n": jnp.sum(valid)}

        def value(self, sums):
            return sums["hit"] / sums["n"]

    made = METRICS.find("within_of_a_test")(tolerance=0.5)
    data = drawn("continuous")
    at = data["valid"]
    wanted = np.mean(abs(data["target"] - data["values"])[at] <= 0.5)
    assert in_batches({"m": made}, data, 7)["m"] == pytest.approx(wanted, abs=1e-12)
    found = made.of(data["target"], data["values"], at)  # in memory, by the same JAX
    assert found == pytest.approx(wanted, abs=1e-12)
    assert not isinstance(found, jax.Array)
    assert (made.label, made.replace(name="near").label) == ("within_of_a_test", "near")
    with pytest.raises(ConfigError, match="reads is 'logits'"):

        @register_metric("odd_of_a_test")
        class Odd(Metric):
            reads = "logits"


def test_an_unknown_metric_lists_those_there_are_and_nitros_own_is_not_replaced_by_chance():
    with pytest.raises(ConfigError, match="no metric recal") as error:
        METRICS.find("recal")
    assert error.value.nearest == ("recall",)
    assert "balanced_accuracy" in error.value.why
    with pytest.raises(ConfigError, match="there is a metric f1 already"):

        @register_metric("f1")
        class Mine(Metric):
            pass


def test_the_metrics_are_listed_and_read_without_jax():
    code = """
import sys
from nitro_cli.metrics import METRICS
for entry in METRICS.entries():
    METRICS.find(entry.id)()
import numpy as np
print(len(METRICS.entries()), METRICS.find("mse")().of(np.array([[1.0]]), np.array([[3.0]])), "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["20", "4.0", "False"]


def test_an_installed_distribution_adds_a_metric_that_a_task_names(tmp_path):
    info = tmp_path / "near_metric-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: near-metric\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nitro.metrics]\nnear = near_metric:Near\n")
    (tmp_path / "near_metric.py").write_text(
        "from nitro_cli.metrics import Mae, register_metric\n\n\n@register_metric('near')\nclass Near(Mae):\n    pass\n"
    )
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from nitro_cli.metrics import METRICS
from nitro_cli.tasks import Regression
listed = [entry.distribution for entry in METRICS.entries() if entry.id == "near"]
total = Regression(metrics=["near"]).accumulator()
total.update(np.array([1.0, 2.0]), np.array([0.0, 4.0]))
print(listed, total.result(), "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['near-metric'] {'count': 2, 'near': 1.5} False"
