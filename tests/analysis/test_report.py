"""Slices, the list of mistakes, and the whole report."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from nitro_cli.analysis import analyze, fit_calibrator, select_threshold, slice_table, wilson_interval
from nitro_cli.errors import ConfigError, DataError
from tests.analysis.conftest import scored_rows


def test_wilsons_interval_by_hand_and_by_scipy():
    assert wilson_interval(9, 10) == pytest.approx((0.5958, 0.9821), abs=5e-5)
    for right, rows in ((0, 3), (3, 3), (50, 200)):
        wanted = binomtest(right, rows).proportion_ci(method="wilson")
        assert wilson_interval(right, rows) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@pytest.fixture
def aged(predicted):
    logits, target = scored_rows(200, 4, 0)
    rng = np.random.default_rng(1)
    fields = {"age": rng.integers(10, 80, 200), "town": np.array(["A", "B"])[rng.integers(0, 2, 200)]}
    return predicted(logits, target, fields=fields)


def test_an_edge_belongs_to_the_upper_part(predicted):
    made = predicted(np.zeros((4, 2)), [0, 1, 0, 1], fields={"age": [29, 30, 59, 60]})
    table = slice_table(made, "age=30,60", min_rows=1)
    assert [(one.name, one.rows) for one in table.slices] == [("age<30", 1), ("30<=age<60", 2), ("age>=60", 1)]


def test_a_part_has_the_figures_of_its_rows_alone(aged):
    right = aged.decoded == aged.target
    for by, inside in {
        "town": {f"town={town}": aged.fields["town"] == town for town in "AB"},
        "class": {f"class={name}": aged.target == name for name in range(3)},
        "decoded": {f"decoded={name}": aged.decoded == name for name in range(4)},
        "town*age=40": {
            "town=A and age<40": (aged.fields["town"] == "A") & (aged.fields["age"] < 40),
            "town=B and age>=40": (aged.fields["town"] == "B") & (aged.fields["age"] >= 40),
        },
    }.items():
        table = slice_table(aged, by, min_rows=1)
        found = {one.name: one for one in table.slices}
        for name, rows in inside.items():
            if rows.any():
                assert found[name].rows == rows.sum()
                assert found[name].score == pytest.approx(right[rows].mean())
                assert found[name].difference == pytest.approx(right[rows].mean() - right.mean())
                assert found[name].interval == wilson_interval(right[rows].sum(), rows.sum())
        assert sum(one.rows for one in table.slices) == 200
        assert table.compared == len(table.slices)


def test_a_part_of_few_rows_has_no_figures_and_is_not_compared(aged):
    table = slice_table(aged, "age=11", min_rows=20)
    few, many = table.slices
    assert (few.name, few.score, few.ece, few.difference, few.interval) == ("age<11", None, None, None, None)
    assert many.score is not None
    assert table.compared == 1


def test_confidence_is_cut_by_the_bins_or_by_edges(aged):
    table = slice_table(aged, "confidence", min_rows=1)
    assert {one.name for one in table.slices} <= {
        "confidence<0.1",
        *(f"{i / 10:g}<=confidence<{(i + 1) / 10:g}" for i in range(1, 9)),
        "confidence>=0.9",
    }
    assert [one.name for one in slice_table(aged, "confidence=0.5").slices] == ["confidence<0.5", "confidence>=0.5"]


def test_a_value_that_is_missing_is_a_part_of_its_own(predicted):
    made = predicted(np.zeros((3, 2)), [0, 1, 0], fields={"age": [1.0, np.nan, 3.0]})
    assert [one.name for one in slice_table(made, "age=2", min_rows=1).slices] == ["age<2", "age>=2", "age missing"]


@pytest.mark.parametrize(
    ("by", "error", "told"),
    [
        ("age", DataError, "61 values|[5-7][0-9] values"),
        ("aeg=3", DataError, "no field aeg"),
        ("age=", ConfigError, "rising"),
        ("age=60,30", ConfigError, "rising"),
        ("age=x", ConfigError, "rising"),
        ("town=3", DataError, "edges are for numbers"),
        ("", DataError, "no field"),
    ],
)
def test_a_description_that_cannot_be_followed_is_refused(aged, by, error, told):
    with pytest.raises(error, match=told) as caught:
        slice_table(aged, by)
    assert caught.value.fix or caught.value.nearest or "edges" in str(caught.value)


def test_values_are_sliced_by_their_mean_absolute_residual(predicted):
    made = predicted([1.0, 2.0, 3.0], [1.0, 4.0, np.nan], kind="continuous", fields={"t": ["a", "b", "b"]})
    table = slice_table(made, "t", min_rows=1)
    assert table.score == "mae"
    found = [(one.rows, one.score, one.ece, one.interval) for one in table.slices]
    assert found == [(1, 0, None, None), (1, 2, None, None)]
    with pytest.raises(DataError, match="continuous prediction has no confidence"):
        slice_table(made, "confidence")


def test_the_most_confident_mistakes_are_named_the_worst_first(predicted):
    logits = [[5.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 2.0]]
    made = predicted(logits, [0, 0, 1, 0], ids=["a", "b", "c", "d"], labels=("no", "yes"))
    found = analyze(made, errors=2).errors
    assert [row["id"] for row in found] == ["c", "d"]
    assert found[0] == {"id": "c", "target": "yes", "decoded": "no", "confidence": pytest.approx(1 / (1 + np.exp(-3)))}


def test_the_largest_residuals_are_named(predicted):
    made = predicted([[1.0, 0.0], [2.0, 9.0]], [[1.0, 0.5], [5.0, np.nan]], kind="continuous", ids=[7, 8])
    assert [(row["id"], row["label"], row["value"]) for row in analyze(made).errors] == [(8, "0", 2.0), (7, "1", 0.0)]


def test_mistakes_of_labels_are_ranked_by_how_far_the_probability_is_off(predicted):
    made = predicted([[3.0, -1.0], [1.0, np.float64(2)]], [[0, 1], [1, np.nan]], kind="bernoulli")
    assert [(row["id"], row["label"]) for row in analyze(made).errors] == [(0, "0"), (0, "1")]


def test_with_a_policy_report_and_confusion_are_of_accepted_rows(predicted):
    logits, target = scored_rows(300, 4, 0)
    policy = select_threshold(predicted(logits, target), risk=0.05).require()
    test = predicted(logits, target, split="test")
    found = analyze(test, policy=policy)
    accepted = policy.apply(test).accepted
    assert 0 < accepted.sum() < 300
    assert found.confusion.sum() == found.coverage.accepted == accepted.sum()
    assert found.report["accuracy"] == pytest.approx((test.decoded == target)[accepted].mean())
    assert found.metrics.values["accuracy"] == pytest.approx((test.decoded == target).mean())


def test_a_calibrator_is_reported_on_and_its_own_split_is_refused(predicted):
    logits, target = scored_rows(300, 4, 0)
    val = predicted(logits * 3, target)
    calibrator = fit_calibrator(val).require()
    policy = select_threshold(val, risk=0.3, calibrator=calibrator).require()
    found = analyze(predicted(logits * 3, target, split="test"), calibrator=calibrator, policy=policy)
    assert found.calibration.improved
    assert found.coverage.policy == policy.id
    with pytest.raises(ConfigError, match="one split"):
        analyze(val, calibrator=calibrator)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "continuous"])
def test_a_report_is_json_whole(predicted, kind):
    logits, target = scored_rows(60, 4, 0)
    given = target if kind == "categorical" else np.eye(4)[target] if kind == "bernoulli" else logits + 1
    found = analyze(predicted(logits, given, kind=kind)).as_json()
    assert json.loads(json.dumps(found, allow_nan=False))["kind"] == kind


def test_above_twenty_classes_the_confusion_matrix_is_its_largest_entries(predicted):
    logits, target = scored_rows(500, 21, 0)
    found = analyze(predicted(logits, target)).as_json()["confusion"]
    assert "counts" not in found
    assert 0 < len(found["largest"]) <= 20


def test_the_room_needs_neither_jax_nor_scipy_to_analyze():
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('jax', 'jaxlib', 'scipy', 'sklearn', 'matplotlib', 'orbax', 'optax'):
            raise ImportError('blocked: ' + name)
sys.meta_path.insert(0, Blocked())
from nitro_cli import analysis
for name in analysis.__all__:
    getattr(analysis, name)
import numpy as np
made = analysis.Probabilities("categorical").predict(np.eye(3), target=[0, 1, 1])
print(analysis.analyze(made).metrics.values["accuracy"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(2 / 3)
