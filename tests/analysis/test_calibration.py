"""Calibration: the figures of the field, scikit-learn's own methods, and data that gives no calibrator."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression

from nitro_cli.analysis import (
    CALIBRATORS,
    CalibrationMethod,
    Calibrator,
    Probabilities,
    brier,
    calibration_report,
    ece,
    fit_calibrator,
    label_nll,
    nll,
    register_calibrator,
    reliability_bins,
)
from nitro_cli.errors import ConfigError, DataError, FitError, IntegrityError, MismatchError, NotFoundError
from nitro_cli.text.canonical import canonical
from tests.analysis.conftest import OTHER_WEIGHTS, scored_rows

Z, Y = [[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]], [0, 0, 1, 1]


def test_a_temperature_and_its_scores_by_hand(predicted):
    calibrator = fit_calibrator(predicted(Z, Y)).require()
    # 3 of 4 are right at one confidence p: the best p is 3/4, so 2 / T = log 3.
    assert calibrator.parameters["temperature"] == pytest.approx(2 / math.log(3), rel=1e-9)
    assert calibrator.parameters["temperature"] == pytest.approx(1.8204784533, abs=1e-9)
    report = calibration_report(calibrator, predicted(Z, Y, split="test"))
    assert report.before.nll == pytest.approx(0.6269280110, abs=1e-10)
    assert report.after.nll == pytest.approx(0.5623351446, abs=1e-10)
    assert report.before.brier == pytest.approx(0.4092157512, abs=1e-10)
    assert report.after.brier == pytest.approx(0.375, abs=1e-10)
    assert report.before.ece == pytest.approx(0.1307970780, abs=1e-10)
    assert report.after.ece == pytest.approx(0, abs=1e-9)
    assert report.outcome == "improved"
    assert "better" in report.summary


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 6), scale=st.floats(0.2, 5))
def test_a_temperature_is_where_a_general_minimizer_finds_it(seed, classes, scale):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, 200)
    logits = scale * (rng.normal(size=(200, classes)) + np.eye(classes)[target])

    def loss(log_t: float) -> float:
        z = logits / math.exp(log_t)
        z = z - z.max(1, keepdims=True)
        return float((np.log(np.exp(z).sum(1)) - z[np.arange(200), target]).mean())

    wanted = minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    found = fit_calibrator(Probabilities("categorical").predict(logits, target=target)).require()
    assert math.log(found.parameters["temperature"]) == pytest.approx(wanted.x, abs=1e-4)


def test_a_temperature_is_scikit_learns(predicted):
    calibration = pytest.importorskip("sklearn.calibration")
    logits, target = scored_rows(300, 4, 5)
    target[:6] = 3
    scaling = calibration._TemperatureScaling().fit(logits, target)
    found = fit_calibrator(predicted(logits, target)).require()
    assert found.parameters["temperature"] == pytest.approx(1 / scaling.beta_, rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "target", "reason"),
    [
        ([[5.0, 0.0], [0.0, 5.0]], [0, 1], "separate"),
        ([[50.0, 0.0], [0.0, 50.0]], [0, 1], "separate"),  # the slope underflows to exactly 0
        ([[1.0, 0.0], [0.0, 1.0]], [1, 0], "no better than uniform"),
        ([[1.0, 0.0], [1.0, 0.0]], [0, 1], "no better than uniform"),
        ([[3.0, 3.0], [1.0, 1.0]], [0, 1], "does not depend"),
        ([[0.0, 0.0]], [-1], "no row has a target"),
        ([[1e200, 0.0], [0.0, 1.0]], [0, 0], "cannot be computed"),
    ],
)
def test_data_without_a_best_temperature_fails_with_its_reason(predicted, logits, target, reason):
    fit = fit_calibrator(predicted(logits, target, ignore_index=-1))
    assert fit.status == "failed"
    assert fit.calibrator is None
    assert reason in fit.reason
    with pytest.raises(FitError, match="no calibrator") as caught:
        fit.require()
    assert caught.value.exit_code == 1
    assert reason in str(caught.value)


def test_what_cannot_be_calibrated_is_refused(predicted):
    with pytest.raises(DataError, match="fewer than two classes"):
        predicted([[1.0]], [0])
    with pytest.raises(DataError, match="row 1 is 2"):
        fit_calibrator(predicted([[1.0, 0.0], [0.0, 1.0]], [0, 2]))
    with pytest.raises(DataError, match="row 1 is nan"):
        predicted([[1.0, 0.0], [math.nan, 1.0]], [0, 1])
    with pytest.raises(DataError, match="3 labels"):
        predicted([[1.0, 0.0]], [0], labels=("a", "b", "c"))
    with pytest.raises(ConfigError, match="each class once"):
        predicted([[1.0, 0.0]], [0], labels=("a", "a"))
    with pytest.raises(ConfigError, match="no calibrator temperatur") as caught:
        fit_calibrator(predicted(Z, Y), method="temperatur")
    assert caught.value.nearest == ("temperature",)
    with pytest.raises(ConfigError, match="platt calibrates bernoulli"):
        fit_calibrator(predicted(Z, Y), method="platt")


def labels_of(seed: int, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=(n, 2)) * 2, 1)
    return logits, (rng.random((n, 2)) < 1 / (1 + np.exp(-0.5 * logits - [0.3, -0.4]))).astype(float)


def test_platts_sigmoid_is_scikit_learns(predicted):
    calibration = pytest.importorskip("sklearn.calibration")
    logits, target = labels_of(0)
    found = fit_calibrator(predicted(logits, target, kind="bernoulli"), method="platt").require()
    made = found.apply(predicted(logits, target, kind="bernoulli")).calibrated_probabilities
    for label in range(2):
        sigmoid = calibration._SigmoidCalibration().fit(logits[:, label], target[:, label])
        np.testing.assert_allclose(made[:, label], sigmoid.predict(logits[:, label]), atol=2e-4)


def test_isotonic_steps_are_scikit_learns_with_ties_and_between_them(predicted):
    logits, target = labels_of(1)
    target[::7, 0] = np.nan
    found = fit_calibrator(predicted(logits, target, kind="bernoulli"), method="isotonic").require()
    new = np.random.default_rng(3).normal(size=(200, 2)) * 3
    made = found.apply(predicted(new, np.zeros((200, 2)), kind="bernoulli")).calibrated_probabilities
    for label in range(2):
        judged = ~np.isnan(target[:, label])
        steps = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        steps.fit(logits[judged, label], target[judged, label])
        np.testing.assert_allclose(made[:, label], steps.predict(new[:, label]), atol=1e-12)


def test_a_temperature_of_labels_is_where_a_general_minimizer_finds_it(predicted):
    logits, target = labels_of(2)
    target[:50, 1] = np.nan
    found = fit_calibrator(predicted(logits, target, kind="bernoulli")).require()
    judged = ~np.isnan(target)

    def loss(log_t: float) -> float:
        z, y = logits[judged] / math.exp(log_t), target[judged]
        return float((np.logaddexp(0, z) - y * z).mean())

    wanted = minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    assert math.log(found.parameters["temperature"]) == pytest.approx(wanted.x, abs=1e-5)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize(
    ("logits", "target", "reason"),
    [
        ([[1.0], [2.0]], [[1.0], [1.0]], "one class"),
        ([[1.0], [1.0]], [[0.0], [1.0]], "all alike"),
        ([[1.0], [2.0]], [[0.5], [1.0]], "neither 0 nor 1"),
    ],
)
def test_labels_that_give_no_curve_fail_with_their_reason(predicted, method, logits, target, reason):
    fit = fit_calibrator(predicted(logits, target, kind="bernoulli"), method=method)
    assert (fit.status, fit.calibrator) == ("failed", None)
    assert reason in fit.reason


def test_the_decision_stays_that_of_the_raw_probabilities(predicted):
    logits, target = scored_rows(100, 4, 2)
    test = predicted(logits, target, split="test")
    calibrator = fit_calibrator(predicted(logits, target)).require()
    made = calibrator.apply(test)
    assert made.prediction is test
    np.testing.assert_array_equal(made.calibrated_probabilities.argmax(1), test.decoded)
    np.testing.assert_allclose(made.calibrated_probabilities.sum(1), 1)
    assert made.calibrator == calibrator.id


def test_a_file_keeps_a_calibrator_bit_for_bit_and_is_canonical(predicted, tmp_path):
    calibrator = fit_calibrator(predicted(*scored_rows(80, 3, 0), labels=("ä", "b", "c"))).require()
    path = calibrator.save(tmp_path / "deep" / "calibrator.json")
    again = Calibrator.load(path)
    assert again == calibrator
    assert again.id == calibrator.id
    assert path.read_bytes() == canonical(json.loads(path.read_text("utf-8"))) + b"\n"
    assert calibrator.id.startswith("sha256:")
    other = fit_calibrator(predicted(*scored_rows(80, 3, 1), labels=("ä", "b", "c"))).require()
    assert other.id != calibrator.id


def test_a_malformed_calibrator_is_refused_whatever_key_it_is(predicted, tmp_path):
    logits, target = labels_of(4)
    fits = [
        fit_calibrator(predicted(*scored_rows(80, 3, 0))),
        fit_calibrator(predicted(logits, target, kind="bernoulli"), method="platt"),
        fit_calibrator(predicted(logits, target, kind="bernoulli"), method="isotonic"),
    ]
    path, places_told = tmp_path / "calibrator.json", set()
    for fit in fits:
        whole = json.loads(canonical(fit.require().model_dump()))
        places = [(key,) for key in whole] + [("parameters", key) for key in whole["parameters"]]
        places += [("split", key) for key in whole["split"]] + [("fit", key) for key in whole["fit"]]
        for place in places:
            for value in ("missing", "text", -1, 0, 1e400, [], {}, [1], [["a"]], True):
                changed = json.loads(json.dumps(whole))
                parent = changed if len(place) == 1 else changed[place[0]]
                if value == "missing":
                    del parent[place[-1]]
                else:
                    parent[place[-1]] = value
                path.write_text(json.dumps(changed))
                try:
                    Calibrator.load(path)
                except IntegrityError as error:
                    places_told.add(str(error.where))
                    continue
                # Names and counts may be any.
                assert place in (("split", "name"), ("split", "ids"), ("split", "data"), ("split", "rows"),
                                 ("fit", "entries"), ("fit", "nll_before"), ("fit", "nll_after")) or (
                    value == "missing" and place in (("format",), ("split", "name"))
                ), (place, value)  # fmt: skip
    assert places_told == {str(path)}
    path.write_text("{")
    with pytest.raises(IntegrityError):
        Calibrator.load(path)
    with pytest.raises(NotFoundError, match="no calibrator"):
        Calibrator.load(tmp_path / "calibratr.json")


def test_another_model_or_other_labels_are_refused_unless_named(predicted):
    calibrator = fit_calibrator(predicted(*scored_rows(80, 3, 0))).require()
    logits, target = scored_rows(50, 3, 1)
    other = predicted(logits, target, split="test", model=OTHER_WEIGHTS)
    with pytest.raises(MismatchError, match="another model") as caught:
        calibrator.apply(other)
    assert caught.value.exit_code == 4
    with pytest.raises(MismatchError, match="set of labels"):
        calibrator.apply(predicted(logits, target, split="test", labels=("a", "b", "c")))
    made = calibrator.apply(other, override="same weights, cast")
    assert made.override.name == "same weights, cast"
    assert OTHER_WEIGHTS in made.override.mismatches[0]
    report = calibration_report(calibrator, other, override="cast")
    assert report.as_json()["override"]["name"] == "cast"
    assert "'cast'" in report.summary
    assert calibrator.apply(predicted(logits, target), override="needless").override is None
    with pytest.raises(ConfigError, match="no name"):
        calibrator.apply(other, override=" ")


def test_reporting_on_the_data_of_the_fit_is_refused(predicted):
    logits, target = scored_rows(60, 3, 0)
    ids = [f"a{i}" for i in range(60)]
    calibrator = fit_calibrator(predicted(logits, target, ids=ids, ids_field="name")).require()
    with pytest.raises(ConfigError, match="one split") as caught:
        calibration_report(calibrator, predicted(logits, target))
    assert "the split val" in str(caught.value)
    from dataclasses import replace

    renamed = predicted(logits, target, split="test")
    renamed = replace(renamed, origin=replace(renamed.origin, data=calibrator.split.data))
    with pytest.raises(ConfigError, match="one split") as caught:
        calibration_report(calibrator, renamed)
    assert "the same data" in str(caught.value)
    overlapping = predicted(logits, target, split="test", ids=["a59", *(f"b{i}" for i in range(59))], ids_field="name")
    with pytest.raises(ConfigError, match="1 samples are in both splits, such as a59"):
        calibration_report(calibrator, overlapping)
    apart = predicted(logits, target, split="test", ids=[f"c{i}" for i in range(60)], ids_field="name")
    assert calibration_report(calibrator, apart).disjoint == "verified"
    assert calibration_report(calibrator, predicted(logits, target, split="test")).disjoint == "unverified"


def test_a_fit_on_train_is_warned_about(predicted):
    fit = fit_calibrator(predicted(*scored_rows(60, 3, 0), split="train"))
    assert fit.status == "ok"
    assert "train" in fit.warnings[0]


def test_a_report_never_sounds_like_success_when_it_is_worse(predicted):
    logits, target = scored_rows(400, 3, 0)
    hot = fit_calibrator(predicted(logits * 20, target)).require()
    worse = calibration_report(hot, predicted(logits, target, split="test"))
    assert worse.outcome == "worsened"
    assert not worse.improved
    assert "WORSE" in worse.summary
    assert "better" not in worse.summary


def test_bins_are_closed_below_and_the_last_on_both_sides():
    bins = reliability_bins(np.array([0.0, 0.1, 0.3, 0.7, 1.0]), np.array([0, 1, 1, 0, 1]), 10)
    assert [one.count for one in bins] == [1, 1, 0, 1, 0, 0, 0, 1, 0, 1]
    assert bins[2].confidence is None
    assert bins[2].accuracy is None
    fine = reliability_bins(np.array([0.57]), np.array([1]), 100)
    assert fine[57].count == 1
    assert sum(one.count for one in fine) == 1
    assert ece(reliability_bins(np.zeros(0), np.zeros(0))) is None
    with pytest.raises(ConfigError, match="0 bins"):
        reliability_bins(np.zeros(1), np.zeros(1), 0)


def test_a_likelihood_has_a_floor_and_is_infinite_without_one():
    shares = np.array([[1.0, 0.0], [0.5, 0.5]])
    target = np.array([1, 0])
    assert nll(shares, target) == pytest.approx((-math.log(1e-12) - math.log(0.5)) / 2)
    assert nll(shares, target, None) == math.inf
    assert brier(shares, target) == pytest.approx((2 + 0.5) / 2)
    assert label_nll(np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]]), None) == 0
    assert label_nll(np.array([[1.0]]), np.array([[0.0]]), None) == math.inf


def test_a_method_of_ones_own_is_fitted_saved_and_read(predicted, tmp_path):
    from nitro_cli.text.documents import Document, Number

    class Share(Document):
        mix: Number

    def mixed(parameters, logits, kind):
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return (1 - parameters.mix) * shares + parameters.mix / logits.shape[1]

    @register_calibrator("mixed")
    class Mixed(CalibrationMethod):
        kinds = ("categorical",)
        parameters = Share
        fit = staticmethod(lambda logits, target, kind: {"mix": 0.25})
        apply = staticmethod(mixed)

    with pytest.raises(ConfigError, match="temperature already"):
        register_calibrator("temperature")(Mixed)
    assert CALIBRATORS.find("mixed") is Mixed
    found = fit_calibrator(predicted(Z, Y), method="mixed").require()
    again = Calibrator.load(found.save(tmp_path / "c.json"))
    made = again.apply(predicted(Z, Y)).calibrated_probabilities
    np.testing.assert_allclose(made, 0.75 * np.exp(Z) / np.exp(Z).sum(1, keepdims=True) + 0.125)
