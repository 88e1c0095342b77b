"""Plateaus against PyTorch's ReduceLROnPlateau."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import MetricError, ScheduleError
from nitro_cli.optim.plateau import Plateau, PlateauCounters

NAN = math.nan
FALLING = [1.0, 0.9, 0.91, 0.89995, 0.95, 0.8, 0.81, 0.82, 0.83, 0.79, 0.85, 0.86, 0.87, 0.88, 0.7, 0.71, 0.72, 0.73]
RISING = [0.1, 0.2, 0.2, 0.19, 0.20001, 0.3, 0.25, NAN, 0.31, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.4, 0.4, 0.4, 0.4]

# The rates after each epoch of torch 2.13.0's ReduceLROnPlateau from a rate of 1.0 (eps=0).
TORCH: list[tuple[list[float], str, dict[str, Any], list[float]]] = [
    (
        FALLING,
        "min",
        {"factor": 0.5, "patience": 2},
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 0.125, 0.0625],
    ),
    (
        FALLING,
        "min",
        {"factor": 0.1, "patience": 0, "cooldown": 2, "min_scale": 0.001},
        [1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001],
    ),
    (
        FALLING,
        "min",
        {"factor": 0.5, "patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
        [1.0, 1.0, 1.0, *[0.5] * 4, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625, *[0.03125] * 3, 0.015625, 0.015625],
    ),
    (
        RISING,
        "max",
        {"factor": 0.5, "patience": 1},
        [1.0, 1.0, 1.0, *[0.5] * 4, *[0.25] * 3, 0.125, 0.125, 0.0625, 0.0625, *[0.03125] * 4, 0.015625, 0.015625],
    ),
    (
        RISING,
        "max",
        {"factor": 0.3, "patience": 1, "cooldown": 1, "threshold": 0.1, "threshold_mode": "abs", "min_scale": 0.05},
        [1.0, 1.0, *[0.3] * 4, *[0.09] * 4, *[0.05] * 10],
    ),
]


@pytest.mark.parametrize(("metrics", "mode", "options", "expected"), TORCH)
def test_the_scale_follows_pytorch(
    metrics: list[float], mode: str, options: dict[str, Any], expected: list[float]
) -> None:
    counters = PlateauCounters(Plateau(1.0, **options), "loss", mode)
    scales = []
    for value in metrics:
        counters, _ = counters.after({"loss": value}, "learning_rate")
        scales.append(counters.scale)
    assert scales == pytest.approx(expected, rel=1e-12)


RANDOM_SERIES = json.loads((Path(__file__).parent / "figures" / "torch_schedules.json").read_text())["plateau"]


@pytest.mark.parametrize("series", RANDOM_SERIES, ids=range(len(RANDOM_SERIES)))
def test_random_series_reduce_at_the_epochs_of_pytorch_under_all_options(series: dict[str, Any]) -> None:
    metrics = series["metrics"]
    if series["options"]["threshold_mode"] == "rel":
        # Below 0 PyTorch's relative margin has the wrong sign; nitro's does not.
        metrics = metrics[: next((i for i, value in enumerate(metrics) if value < 0), len(metrics))]
    counters = PlateauCounters(Plateau(1.0, **series["options"]), "m", series["mode"])
    scales = []
    for value in metrics:
        counters, _ = counters.after({"m": value}, "learning_rate")
        scales.append(counters.scale)
    assert scales == pytest.approx(series["rates"][: len(metrics)], rel=1e-12)


def scales_of(metrics: list[float], mode: str, **options: Any) -> list[float]:
    counters = PlateauCounters(Plateau(0.1, **options), "m", mode)
    scales = []
    for value in metrics:
        counters, _ = counters.after({"m": value}, "learning_rate")
        scales.append(counters.scale)
    return scales


@pytest.mark.parametrize("score", [-5.0, 5.0])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_stands_still_halves_the_rate_whatever_its_sign(score: float, mode: str) -> None:
    # The first epoch is the best, the second is tolerated, the third and every second one after it reduce.
    assert scales_of([score] * 7, mode, patience=1, factor=0.5) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_the_relative_margin_is_a_fraction_of_the_size_of_the_best() -> None:
    # From a best of -5 a tenth of its size is 0.5: -5.5 is no improvement, -5.5625 is, and then 0.55625 is asked for.
    options: dict[str, Any] = {"patience": 0, "factor": 0.5, "threshold": 0.1}
    assert scales_of([-5.0, -5.5, -5.5625, -6.0], "min", **options) == [1.0, 0.5, 0.5, 0.25]
    assert scales_of([-5.0, -4.5, -4.4375, -4.0], "max", **options) == [1.0, 0.5, 0.5, 0.25]
    # Of a best of 0 nothing at all: every smaller score improves.
    assert scales_of([0.0, -1e-6, -1e-6], "min", **options) == [1.0, 1.0, 0.5]


class ByTheBook:
    """ReduceLROnPlateau as PyTorch documents it, for any sequence, the relative margin that of the best's size."""

    def __init__(self, mode: str, factor: float, patience: int, cooldown: int, relative: bool) -> None:
        self.best = math.inf if mode == "min" else -math.inf
        self.sign = 1 if mode == "min" else -1
        self.scale, self.bad, self.wait = 1.0, 0, 0
        self.factor, self.patience, self.cooldown = factor, patience, cooldown
        self.threshold, self.relative = 1e-4, relative

    def step(self, value: float) -> float:
        margin = self.threshold * abs(self.best) if self.relative and math.isfinite(self.best) else self.threshold
        better = self.best == self.sign * math.inf or (self.sign * value < self.sign * (self.best - self.sign * margin))
        self.best, self.bad = (value, 0) if better else (self.best, self.bad + 1)
        if self.wait > 0:
            self.wait, self.bad = self.wait - 1, 0
        if self.bad > self.patience:
            self.scale, self.wait, self.bad = self.scale * self.factor, self.cooldown, 0
        return self.scale


@given(
    metrics=st.lists(st.floats(-10, 10), max_size=40),
    mode=st.sampled_from(["min", "max"]),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    relative=st.booleans(),
    cut=st.integers(0, 40),
)
def test_any_sequence_follows_the_rule_and_a_json_round_trip_in_the_middle_changes_nothing(
    metrics: list[float], mode: str, patience: int, cooldown: int, relative: bool, cut: int
) -> None:
    threshold_mode = "rel" if relative else "abs"
    rule = Plateau(1.0, factor=0.5, patience=patience, cooldown=cooldown, threshold_mode=threshold_mode)
    counters, book = PlateauCounters(rule, "m", mode), ByTheBook(mode, 0.5, patience, cooldown, relative)
    for index, value in enumerate(metrics):
        if index == cut:
            continued = PlateauCounters(rule, "m", mode).continued(json.loads(json.dumps(counters.state())))
            assert continued == counters
            counters = continued
        counters, _ = counters.after({"m": value}, "learning_rate")
        assert counters.scale == book.step(value)


def test_a_resume_in_the_middle_of_a_cooldown_continues_it() -> None:
    rule = Plateau(1.0, factor=0.5, patience=0, cooldown=2)
    before = fresh = PlateauCounters(rule, "m", "min")
    for _ in range(2):
        before, _said = before.after({"m": 1.0}, "k")
    assert before.scale == 0.5
    counters = fresh.continued(json.loads(json.dumps(before.state())))
    assert counters is not None
    scales = []
    for _ in range(4):
        counters, _said = counters.after({"m": 1.0}, "k")
        scales.append(counters.scale)
    assert scales == [0.5, 0.5, 0.25, 0.25]


def test_a_reduction_is_announced_with_key_and_both_scales() -> None:
    counters = PlateauCounters(Plateau(1.0, patience=0), "loss", "min")
    counters, nothing = counters.after({"loss": 1.0}, "momentum")
    _, said = counters.after({"loss": 1.0}, "momentum")
    assert nothing is None
    assert said is not None
    assert "momentum" in said
    assert "0.1" in said
    assert "loss" in said


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_a_bad_epoch(value: float) -> None:
    counters = PlateauCounters(Plateau(1.0, patience=0), "loss", "max")
    counters, _ = counters.after({"loss": 1.0}, "k")
    counters, _ = counters.after({"loss": value}, "k")
    assert counters.scale == 0.1
    assert counters.best == 1.0


@pytest.mark.parametrize("value", ["low", None, True, [1.0]])
def test_a_metric_that_is_no_real_number_is_refused(value: Any) -> None:
    counters = PlateauCounters(Plateau(1.0), "loss", "min")
    with pytest.raises(MetricError, match="not a real number"):
        counters.after({"loss": value}, "learning_rate")


def test_a_missing_metric_names_those_there_are() -> None:
    counters = PlateauCounters(Plateau(1.0), "los", "min")
    with pytest.raises(MetricError, match="acc, loss"):
        counters.after({"loss": 1.0, "acc": 2.0}, "learning_rate")


@pytest.mark.parametrize(
    "options",
    [
        {"factor": 1.0},
        {"factor": 0.0},
        {"patience": -1},
        {"cooldown": 1.5},
        {"threshold_mode": "relative"},
        {"mode": "least", "metric": "loss"},
        {"metric": "loss"},
        {"min_scale": -1.0},
    ],
)
def test_a_value_out_of_its_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError, match="plateau"):
        Plateau(1.0, **options)
