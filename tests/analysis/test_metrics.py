"""Every metric against scikit-learn, on data with ties, absent classes and masks."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.analysis import (
    accuracy,
    auroc,
    average_precision,
    balanced_accuracy,
    class_scores,
    classification_report,
    confusion_matrix,
    largest_confusions,
    mcc,
    mean_score,
    metrics_of,
    residual_quantiles,
    top_k,
)
from nitro_cli.errors import ConfigError, DataError
from tests.analysis.conftest import scored_rows


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 60), classes=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_scores_of_decisions_are_scikit_learns(n, classes, seed):
    logits, target = scored_rows(n, classes, seed)
    decoded = logits.argmax(1)
    names = tuple(map(str, range(classes)))
    confusion = confusion_matrix(target, decoded, classes)
    np.testing.assert_array_equal(confusion, oracle.confusion_matrix(target, decoded, labels=range(classes)))
    assert confusion.dtype == np.int64
    scores = class_scores(confusion, names)
    assert accuracy(target, decoded) == pytest.approx(oracle.accuracy_score(target, decoded), abs=1e-12)
    recalls = oracle.recall_score(target, decoded, labels=np.unique(target), average="macro", zero_division=0)
    assert balanced_accuracy(scores) == pytest.approx(recalls, abs=1e-12)
    for name in ("precision", "recall", "f1"):
        for average in ("macro", "weighted", "micro"):
            wanted = getattr(oracle, f"{name}_score")(target, decoded, average=average, zero_division=0)
            assert mean_score(scores, name, average) == pytest.approx(wanted, abs=1e-12), (name, average)
    found = mcc(confusion)
    wanted = oracle.matthews_corrcoef(target, decoded)
    assert wanted == 0 if found is None else found == pytest.approx(wanted, abs=1e-12)
    told = oracle.classification_report(target, decoded, output_dict=True, zero_division=0)
    report = classification_report(scores, confusion)
    for average in ("macro", "weighted"):
        for name, key in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert report[average][name] == pytest.approx(told[f"{average} avg"][key], abs=1e-12)
    for row in report["classes"]:
        known = told.get(row["name"])
        assert row["support"] == (known["support"] if known else 0)
        if known:
            for name, key in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
                assert (row[name] or 0.0) == pytest.approx(known[key], abs=1e-12)
    assert report["accuracy"] == pytest.approx(oracle.accuracy_score(target, decoded), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 80), seed=st.integers(0, 10**6), digits=st.integers(0, 2))
def test_areas_under_curves_are_scikit_learns_with_ties(n, seed, digits):
    rng = np.random.default_rng(seed)
    positive, score = rng.random(n) < 0.4, np.round(rng.normal(size=n), digits)
    if positive.all() or not positive.any():
        assert auroc(positive, score) is None
    else:
        assert auroc(positive, score) == pytest.approx(oracle.roc_auc_score(positive, score), abs=1e-12)
    if positive.any():
        wanted = oracle.average_precision_score(positive, score)
        assert average_precision(positive, score) == pytest.approx(wanted, abs=1e-12)
    else:
        assert average_precision(positive, score) is None


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 50), classes=st.integers(3, 6), seed=st.integers(0, 10**6))
def test_top_k_is_scikit_learns_and_of_equal_scores_the_lower_class_goes_first(n, classes, seed):
    logits, target = scored_rows(n, classes, seed)
    # scikit-learn lets the higher class go first: with the classes in reverse that is the lower one.
    backwards, mirrored = logits[:, ::-1], classes - 1 - target
    for k in range(1, classes):
        wanted = oracle.top_k_accuracy_score(mirrored, backwards, k=k, labels=range(classes))
        assert top_k(target, logits, k) == pytest.approx(wanted, abs=1e-12)
    assert top_k(target, logits, 1) == pytest.approx(oracle.accuracy_score(target, logits.argmax(1)), abs=1e-12)


def test_a_table_of_a_categorical_prediction_is_scikit_learns(predicted):
    logits, target = scored_rows(300, 7, 3)
    target[:5] = 6
    table = metrics_of(predicted(logits, target))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    hot = np.eye(7)[target]
    assert table.reasons == {}
    assert table.values["nll"] == pytest.approx(oracle.log_loss(target, shares), abs=1e-12)
    assert table.values["brier"] == pytest.approx(
        oracle.brier_score_loss(target, shares, scale_by_half=False), abs=1e-12
    )
    assert table.values["auroc"] == pytest.approx(oracle.roc_auc_score(target, shares, multi_class="ovr"), abs=1e-12)
    wanted = oracle.average_precision_score(hot, shares, average="macro")
    assert table.values["average_precision"] == pytest.approx(wanted, abs=1e-12)
    assert table.values["balanced_accuracy"] == pytest.approx(
        oracle.balanced_accuracy_score(target, logits.argmax(1)), abs=1e-12
    )
    assert {"accuracy", "f1", "precision", "recall", "mcc", "top_5", "ece"} < set(table.values)


def test_an_undefined_metric_is_none_with_its_reason(predicted):
    logits, target = scored_rows(50, 4, 0)
    table = metrics_of(predicted(logits, target, labels=("a", "b", "c", "never")))
    assert table.values["auroc"] is None
    assert "never" in table.reasons["auroc"]
    empty = metrics_of(predicted(np.zeros((2, 3)), [-100, -100], ignore_index=-100))
    assert set(empty.values.values()) == {None}
    assert set(empty.reasons.values()) == {"no row has a target"}
    one = metrics_of(predicted([[1.0, 0.0], [2.0, 0.0]], [0, 0]))
    assert one.values["mcc"] is None
    assert "one class" in one.reasons["mcc"]


def test_entries_that_are_masked_do_not_count(predicted):
    logits, target = scored_rows(40, 4, 1)
    target[:4] = 3
    masked = target.copy()
    masked[::3] = -1
    found = metrics_of(predicted(logits, masked, ignore_index=-1))
    kept = metrics_of(predicted(logits[masked >= 0], masked[masked >= 0]))
    assert found == kept
    with pytest.raises(DataError, match="row 0 is -1"):
        metrics_of(predicted(logits, masked))


def test_positions_of_a_sequence_are_entries_and_their_class_axis_may_be_any(predicted):
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(6, 5, 3)), rng.integers(0, 3, (6, 5))
    target[0, 0] = -100
    found = metrics_of(predicted(logits, target, ignore_index=-100)).values
    flat = target.reshape(-1) != -100
    wanted = oracle.accuracy_score(target.reshape(-1)[flat], logits.argmax(-1).reshape(-1)[flat])
    assert found["accuracy"] == pytest.approx(wanted)
    from nitro_cli.analysis import PredictionOrigin, Probabilities

    first = Probabilities("categorical", class_axis=1).predict(
        np.moveaxis(logits, -1, 1), target=target, origin=PredictionOrigin(ignore_index=-100)
    )
    assert metrics_of(first).values == found
    assert first.decoded.shape == (6, 5)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(3, 40), labels=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_labels_are_scikit_learns_without_a_mask(predicted_factory, n, labels, seed):
    rng = np.random.default_rng(seed)
    target = (rng.random((n, labels)) < 0.5).astype(float)
    logits = np.round(rng.normal(size=(n, labels)), 1)
    found = metrics_of(predicted_factory(logits, target, kind="bernoulli")).values
    decided, shares = logits >= 0, 1 / (1 + np.exp(-logits))
    assert found["subset_accuracy"] == pytest.approx((decided == target).all(1).mean())
    assert found["element_accuracy"] == pytest.approx(1 - oracle.hamming_loss(target, decided))
    assert found["nll"] == pytest.approx(oracle.log_loss(target.reshape(-1), shares.reshape(-1), labels=[0, 1]))
    assert found["brier"] == pytest.approx(oracle.mean_squared_error(target, shares))
    occur = [i for i in range(labels) if target[:, i].any() or decided[:, i].any()]
    for name in ("precision", "recall", "f1"):
        score = getattr(oracle, f"{name}_score")
        wanted = [score(target[:, i], decided[:, i], zero_division=0) for i in occur]
        assert found[name] == (pytest.approx(np.mean(wanted), abs=1e-12) if wanted else None)
    if all(0 < target[:, i].sum() < n for i in range(labels)):
        assert found["auroc"] == pytest.approx(oracle.roc_auc_score(target, shares, average="macro"), abs=1e-12)
    else:
        assert found["auroc"] is None


@pytest.fixture(scope="module")
def predicted_factory():
    from nitro_cli.analysis import Probabilities

    return lambda logits, target, kind: Probabilities(kind).predict(logits, target=target)


def test_masked_labels_count_for_no_label(predicted):
    rng = np.random.default_rng(2)
    target = (rng.random((50, 3)) < 0.5).astype(float)
    target[rng.random((50, 3)) < 0.3] = np.nan
    logits = rng.normal(size=(50, 3))
    found = metrics_of(predicted(logits, target, kind="bernoulli")).values
    judged = ~np.isnan(target)
    flat, decided = target[judged], (logits >= 0)[judged]
    assert found["element_accuracy"] == pytest.approx(oracle.accuracy_score(flat, decided))
    shares = 1 / (1 + np.exp(-logits[judged]))
    assert found["nll"] == pytest.approx(oracle.log_loss(flat, shares))
    per_label = [oracle.f1_score(target[judged[:, i], i], logits[judged[:, i], i] >= 0) for i in range(3)]
    assert found["f1"] == pytest.approx(np.mean(per_label))
    areas = [oracle.roc_auc_score(target[judged[:, i], i], logits[judged[:, i], i]) for i in range(3)]
    assert found["auroc"] == pytest.approx(np.mean(areas))


def test_a_soft_target_of_labels_has_a_likelihood_and_no_decisions_to_judge(predicted):
    found = metrics_of(predicted([[0.3], [-1.0]], [[0.25], [0.5]], kind="bernoulli"))
    p = 1 / (1 + np.exp(-np.array([0.3, -1.0])))
    wanted = -np.mean([0.25 * np.log(p[0]) + 0.75 * np.log(1 - p[0]), 0.5 * np.log(p[1]) + 0.5 * np.log(1 - p[1])])
    assert found.values["nll"] == pytest.approx(wanted)
    assert found.values["f1"] is None
    assert "neither 0 nor 1" in found.reasons["f1"]


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)])
def test_values_are_scikit_learns(predicted, shape):
    rng = np.random.default_rng(0)
    target = rng.normal(size=shape)
    values = target + rng.normal(size=shape)
    found = metrics_of(predicted(values, target, kind="continuous")).values
    assert found["mse"] == pytest.approx(oracle.mean_squared_error(target, values))
    assert found["rmse"] == pytest.approx(oracle.mean_squared_error(target, values) ** 0.5)
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(target, values))
    assert found["r2"] == pytest.approx(oracle.r2_score(target, values))
    assert found["max_error"] == pytest.approx(oracle.max_error(target.reshape(-1), values.reshape(-1)))


def test_masked_values_do_not_count_and_a_constant_target_has_no_r2(predicted):
    target, values = np.array([1.0, np.nan, 3.0]), np.array([2.0, 100.0, 3.0])
    found = metrics_of(predicted(values, target, kind="continuous")).values
    assert (found["mae"], found["max_error"]) == (0.5, 1.0)
    constant = metrics_of(predicted(values, [1.0, 1.0, np.nan], kind="continuous"))
    assert constant.values["r2"] is None
    assert "constant" in constant.reasons["r2"]


def test_quantiles_of_residuals_are_numpys():
    rng = np.random.default_rng(0)
    target, values = rng.normal(size=(30, 1)), rng.normal(size=(30, 1))
    found = residual_quantiles(target, values)
    assert list(found) == ["0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"]
    assert found["0.5"] == pytest.approx(np.median(values - target))
    assert found["0.05"] == pytest.approx(np.percentile(values - target, 5))


@pytest.mark.parametrize("normalize", ["true", "predicted", "all"])
def test_a_normalized_confusion_matrix_is_scikit_learns(normalize):
    logits, target = scored_rows(60, 5, 4)
    decoded = logits.argmax(1)
    word = {"predicted": "pred"}.get(normalize, normalize)
    wanted = oracle.confusion_matrix(target, decoded, labels=range(5), normalize=word)
    np.testing.assert_allclose(confusion_matrix(target, decoded, 5, normalize=normalize), wanted)
    with pytest.raises(ConfigError, match="normalize"):
        confusion_matrix(target, decoded, 5, normalize="rows")


def test_a_class_outside_the_names_is_an_error_and_the_largest_confusions_are_named():
    with pytest.raises(DataError, match="decision of row 1 is 3"):
        confusion_matrix(np.array([0, 1]), np.array([0, 3]), 3)
    confusion = np.array([[5, 2, 0], [0, 4, 7], [2, 0, 9]])
    found = largest_confusions(confusion, ("a", "b", "c"), 3)
    assert [(row["target"], row["decoded"], row["count"]) for row in found] == [
        ("b", "c", 7),
        ("a", "b", 2),
        ("c", "a", 2),
    ]
