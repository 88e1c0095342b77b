"""Risk, coverage, and the choice of a threshold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from nitro_cli.analysis import (
    AbstentionPolicy,
    aurc,
    binomial_upper_bound,
    fit_calibrator,
    risk_coverage,
    select_threshold,
)
from nitro_cli.errors import ConfigError, DataError, FitError, IntegrityError, MismatchError
from nitro_cli.text.canonical import canonical
from tests.analysis.conftest import OTHER_WEIGHTS, WEIGHTS, scored_rows

P = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.55, 0.45], [0.3, 0.7]])
Y = [0, 1, 1, 0, 1]


def test_a_curve_by_hand(predicted):
    curve = risk_coverage(predicted(np.log(P), Y))
    points = list(curve)
    assert [point.threshold for point in points[:-1]] == pytest.approx([0.55, 0.6, 0.7, 0.8, 0.9])
    assert [point.coverage for point in points[:-1]] == [1, 0.8, 0.6, 0.4, 0.2]
    assert [point.risk for point in points[:-1]] == pytest.approx([0.2, 0.25, 1 / 3, 0.5, 0])
    assert (points[-1].accepted, points[-1].risk, points[-1].deployable) == (0, None, False)
    assert curve.aurc == pytest.approx(0.2566667, abs=1e-7)
    assert len(curve) == len(points) == 6


@pytest.mark.parametrize(("ceiling", "threshold"), [(0.25, 0.55), (0.1, 0.9), (0.2, 0.55), (0, 0.9)])
def test_the_largest_coverage_under_the_ceiling_is_chosen(predicted, ceiling, threshold):
    policy = select_threshold(predicted(np.log(P), Y), risk=ceiling).require()
    assert policy.threshold == pytest.approx(threshold)
    assert policy.basis == "empirical"


def test_the_smallest_risk_is_told_where_no_threshold_is_feasible(predicted):
    wrong = select_threshold(predicted(np.log(P), [1, 1, 1, 0, 1]), risk=0.1)
    assert wrong.status == "no_feasible_policy"
    assert wrong.policy is None
    assert wrong.least_risk == pytest.approx(0.4)  # all five rows
    with pytest.raises(FitError, match="no threshold") as caught:
        wrong.require()
    assert "0.4" in str(caught.value)
    assert caught.value.exit_code == 1
    nothing = select_threshold(predicted(np.log(P), [-1] * 5, ignore_index=-1), risk=0.1)
    assert nothing.status == "no_feasible_policy"


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), digits=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_every_point_of_a_curve_is_a_count_and_its_area_is_the_mean_over_orders_of_ties(n, digits, seed):
    rng = np.random.default_rng(seed)
    score, wrong = np.round(rng.random(n), digits), rng.random(n) < 0.4
    from nitro_cli.analysis import Probabilities

    shares = np.stack([(1 + score) / 2, (1 - score) / 2], axis=1)
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(shares), -1e6)
    prediction = Probabilities("categorical").predict(logits, target=wrong.astype(int))
    decided = prediction.decoded != prediction.target
    for point in list(risk_coverage(prediction, score="margin"))[:-1]:
        taken = score >= point.threshold - 1e-9
        assert (point.accepted, point.wrong) == (taken.sum(), (taken & decided).sum())
    areas = []
    for _ in range(300):
        order = np.lexsort((rng.random(n), -score))
        areas.append((np.cumsum(wrong[order]) / np.arange(1, n + 1)).mean())
    assert aurc(score, wrong) == pytest.approx(np.mean(areas), abs=6 * np.std(areas) / 300**0.5 + 1e-12)


def test_a_curve_of_many_scores_has_ten_thousand_points(predicted):
    rng = np.random.default_rng(0)
    score = rng.random(12_345)
    logits = np.log(np.stack([(1 + score) / 2, (1 - score) / 2], axis=1))
    curve = risk_coverage(predicted(logits, rng.integers(0, 2, 12_345)), score="margin")
    assert len(curve.thresholds) == 10_000
    assert curve.accepted[0] == 12_345
    assert (np.diff(curve.accepted) < 0).all()


def test_the_empirical_ceiling_breaks_on_new_data_in_half_of_all_draws_and_the_guaranteed_one_rarely(predicted):
    draws, rows, ceiling = 400, 5_000, 0.1
    rng = np.random.default_rng(0)
    broken = {None: 0, 0.95: 0}
    chosen = 0
    for _ in range(draws):
        score = rng.random(rows)
        shares = np.stack([(1 + score) / 2, (1 - score) / 2], axis=1)
        val = predicted(np.log(shares), (rng.random(rows) >= score).astype(int))
        for confidence in broken:
            selection = select_threshold(val, risk=ceiling, score="margin", confidence=confidence)
            if selection.policy is None:
                continue
            chosen += confidence is not None
            # A row of score s is wrong with probability 1 - s: above t that is (1 - t) / 2 on average.
            broken[confidence] += (1 - selection.policy.threshold) / 2 > ceiling
    assert 0.4 <= broken[None] / draws <= 0.65
    assert broken[0.95] / draws <= 0.05
    assert chosen == draws


@given(rows=st.integers(1, 300), share=st.floats(0, 1), error=st.floats(1e-4, 0.5))
@settings(max_examples=50, deadline=None)
def test_the_bound_of_a_risk_is_scipys_exact_interval(rows, share, error):
    wrong = int(share * rows)
    wanted = binomtest(wrong, rows, alternative="less").proportion_ci(1 - error, "exact").high
    assert binomial_upper_bound(wrong, rows, error) == pytest.approx(wanted, abs=1e-9)


def test_a_policy_keeps_every_row_and_says_why_it_abstains(predicted):
    policy = select_threshold(predicted(np.log(P), Y), risk=0.1).require()
    made = policy.apply(predicted(np.log(P), Y, split="test", ids=list("abcde")))
    assert made.accepted.tolist() == [True, False, False, False, False]
    assert made.reasons[0] is None
    assert "below 0.9" in made.reasons[1]
    np.testing.assert_allclose(made.probabilities, P)
    np.testing.assert_array_equal(made.prediction, P.argmax(1))
    np.testing.assert_array_equal(made.ids, list("abcde"))
    report = made.report()
    assert (report.status, report.coverage, report.risk) == ("ok", 0.2, 0.0)
    np.testing.assert_array_equal(report.accepted_ids, ["a"])
    other = made.report(np.array([1, 1, 1, 0, 1]))
    assert (other.wrong, other.risk) == (1, 1.0)


def test_the_margin_is_the_distance_of_the_two_largest(predicted):
    logits = np.log([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    policy = select_threshold(predicted(logits, [0, 0]), risk=0.5, score="margin").require()
    np.testing.assert_allclose(policy.apply(predicted(logits, [0, 0])).score, [0.2, 0.0], atol=1e-12)


def test_coverage_without_accepted_rows_has_no_risk_and_without_rows_nothing(predicted):
    policy = select_threshold(predicted(np.log(P), Y), risk=0.1).require()
    none = policy.apply(predicted(np.zeros((3, 2)), [0, 1, 0], split="test")).report()
    assert (none.status, none.coverage, none.risk) == ("no_accepted", 0.0, None)
    empty = policy.apply(predicted(np.zeros((0, 2)), np.zeros(0, int), split="test")).report()
    assert (empty.status, empty.coverage, empty.risk) == ("empty", None, None)


def test_chunks_add_up_to_the_whole_and_repeated_ids_are_refused(predicted):
    logits, target = scored_rows(60, 3, 0)
    policy = select_threshold(predicted(logits, target), risk=0.2).require()
    whole = policy.apply(predicted(logits, target, split="test")).report()
    parts = [
        policy.apply(predicted(logits[a:b], target[a:b], split="test", ids=np.arange(a, b))).report()
        for a, b in ((0, 7), (7, 30), (30, 60))
    ]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert (merged.rows, merged.accepted, merged.wrong) == (whole.rows, whole.accepted, whole.wrong)
    np.testing.assert_array_equal(merged.accepted_ids, whole.accepted_ids)
    with pytest.raises(DataError, match="the id 0 is there several times"):
        parts[0].merge(parts[0])
    other = select_threshold(predicted(logits, target), risk=0.3).require()
    with pytest.raises(ConfigError, match="two policies"):
        parts[0].merge(other.apply(predicted(logits, target, split="test")).report())


def test_reporting_on_the_data_of_the_choice_is_refused(predicted):
    val = predicted(np.log(P), Y)
    policy = select_threshold(val, risk=0.1).require()
    with pytest.raises(ConfigError, match="one split"):
        policy.apply(val).report()


def test_another_model_labels_or_calibrator_is_refused_before_values_are_read(predicted):
    logits, target = scored_rows(80, 3, 0)
    val = predicted(logits, target)
    calibrator = fit_calibrator(val).require()
    policy = select_threshold(val, risk=0.3, calibrator=calibrator).require()
    assert (policy.input, policy.calibrator) == ("calibrated_probabilities", calibrator.id)
    test = predicted(logits, target, split="test")
    np.testing.assert_allclose(
        policy.apply(test, calibrator=calibrator).score, calibrator.apply(test).calibrated_probabilities.max(1)
    )
    with pytest.raises(MismatchError, match="calibrator"):
        policy.apply(test)
    raw = select_threshold(val, risk=0.3).require()
    with pytest.raises(MismatchError, match="raw"):
        raw.apply(test, calibrator=calibrator)
    with pytest.raises(MismatchError, match="another model"):
        raw.apply(predicted(logits, target, model=OTHER_WEIGHTS))
    with pytest.raises(MismatchError, match="labels"):
        raw.apply(predicted(logits, target, labels=("x", "y", "z")))
    made = raw.apply(predicted(logits, target, model=OTHER_WEIGHTS, split="test"), override="cast")
    assert made.report().as_json()["override"][0]["name"] == "cast"
    with pytest.raises(DataError, match="bernoulli"):
        raw.apply(predicted(logits, np.zeros((80, 3)), kind="bernoulli"))


def test_a_policy_judges_one_distribution(predicted):
    policy = select_threshold(predicted(np.log(P), Y, labels=("no", "yes")), risk=0.1).require()
    sure = policy.decide(("no", "yes"), (0.05, 0.95), WEIGHTS)
    assert (sure.prediction, sure.accepted, sure.reason) == ("yes", True, None)
    unsure = policy.decide(("no", "yes"), (0.5, 0.5), WEIGHTS)
    assert (unsure.prediction, unsure.accepted) == ("no", False)
    assert "below" in unsure.reason
    with pytest.raises(MismatchError, match="labels"):
        policy.decide(("yes", "no"), (0.5, 0.5), WEIGHTS)
    with pytest.raises(MismatchError, match="model"):
        policy.decide(("no", "yes"), (0.5, 0.5), OTHER_WEIGHTS)
    for wrong in ((0.5, 0.6), (math.nan, 1.0), (1.5, -0.5), (1.0,)):
        with pytest.raises(DataError, match="no probabilities"):
            policy.decide(("no", "yes"), wrong, WEIGHTS)


def test_a_malformed_policy_is_refused_whatever_key_it_is(predicted, tmp_path):
    policy = select_threshold(predicted(np.log(P), Y), risk=0.1, score="margin").require()
    path = policy.save(tmp_path / "policy.json")
    assert AbstentionPolicy.load(path) == policy
    assert path.read_bytes() == canonical(json.loads(path.read_text())) + b"\n"
    whole = json.loads(path.read_text())
    for key in whole:
        for value in (None, "text", -0.5, 1.5, 1e400, [], {}, ["a"], True):
            path.write_text(json.dumps({**whole, key: value}))
            if value is None and key in ("model_id", "calibrator", "confidence"):
                continue  # there is none
            with pytest.raises(IntegrityError) as caught:
                AbstentionPolicy.load(path)
            assert str(path) in str(caught.value.where)
    path.write_text(json.dumps({**whole, "another": 1}))
    with pytest.raises(IntegrityError, match="malformed"):
        AbstentionPolicy.load(path)


@pytest.mark.parametrize("words", [{"risk": -0.1}, {"risk": 1.5}, {"risk": math.nan}, {"risk": 0.1, "confidence": 1.0}])
def test_a_ceiling_out_of_range_is_refused(predicted, words):
    with pytest.raises(ConfigError):
        select_threshold(predicted(np.log(P), Y), **words)
    with pytest.raises(ConfigError, match="max_probability"):
        select_threshold(predicted(np.log(P), Y), risk=0.1, score="entropy")
