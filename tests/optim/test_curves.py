"""The named schedules against optax and PyTorch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli import optim
from nitro_cli.errors import ConfigError, ScheduleError

# Values of torch 2.13.0's OneCycleLR over an SGD optimizer, in double precision.
TORCH_ONE_CYCLE: list[tuple[int, dict[str, Any], list[float]]] = [
    (
        10,
        {"max_lr": 0.001},
        [
            3.9999999999999996e-05,
            0.0005200000000000001,
            0.001,
            0.0009504846320134736,
            0.000811745653949763,
            0.0006112620219362892,
            0.00038874197806371076,
            0.00018825834605023698,
            4.9519367986526286e-05,
            4e-09,
        ],
    ),
    (
        7,
        {"max_lr": 0.5, "pct_start": 0.25, "anneal_strategy": "linear", "div_factor": 10.0, "final_div_factor": 100.0},
        [
            0.05,
            0.4762142857142857,
            0.38107142857142856,
            0.2859285714285714,
            0.19078571428571428,
            0.09564285714285714,
            0.0005000000000000004,
        ],
    ),
    (
        12,
        {"max_lr": 2.0, "three_phase": True, "pct_start": 0.4},
        [
            0.08000000000000007,
            0.38980969123928855,
            1.1192761716534387,
            1.7975748890205376,
            1.9869068512666137,
            1.5650702317975305,
            0.8043339323448337,
            0.19570519884177112,
            0.07729915928725663,
            0.05094942495092307,
            0.01590102508337528,
            8e-06,
        ],
    ),
    (
        9,
        {
            "max_lr": 1.0,
            "three_phase": True,
            "anneal_strategy": "linear",
            "pct_start": 0.3,
            "div_factor": 4.0,
            "final_div_factor": 50.0,
        },
        [
            0.25,
            0.6911764705882354,
            0.8676470588235292,
            0.42647058823529393,
            0.21804347826086953,
            0.16478260869565214,
            0.11152173913043475,
            0.058260869565217394,
            0.0050000000000000044,
        ],
    ),
]

OPTAX = {
    "constant": (optim.constant(0.25), optax.constant_schedule(0.25)),
    "linear": (
        optim.linear(1.0, 0.1, transition_steps=20, transition_begin=5),
        optax.linear_schedule(1.0, 0.1, 20, 5),
    ),
    "polynomial": (
        optim.polynomial(2.0, 0.5, power=2.5, transition_steps=30, transition_begin=3),
        optax.polynomial_schedule(2.0, 0.5, 2.5, 30, 3),
    ),
    "cosine": (
        optim.cosine(0.3, decay_steps=40, alpha=0.1, exponent=1.5),
        optax.cosine_decay_schedule(0.3, 40, 0.1, 1.5),
    ),
    "warmup_cosine": (
        optim.warmup_cosine(1e-2, 10, init_value=1e-4, decay_steps=45, end_value=1e-3, exponent=2.0),
        optax.warmup_cosine_decay_schedule(1e-4, 1e-2, 10, 45, 1e-3, 2.0),
    ),
    "exponential": (
        optim.exponential(0.9, 0.5, transition_steps=7, transition_begin=4),
        optax.exponential_decay(0.9, 7, 0.5, 4),
    ),
    "exponential, staircase": (
        optim.exponential(0.9, 0.5, transition_steps=7, staircase=True, end_value=0.2),
        optax.exponential_decay(0.9, 7, 0.5, 0, True, 0.2),
    ),
    "exponential, growing": (
        optim.exponential(0.1, 1.3, transition_steps=5, end_value=0.7),
        optax.exponential_decay(0.1, 5, 1.3, end_value=0.7),
    ),
    "piecewise": (
        optim.piecewise(1.0, {30: 0.5, 10: 0.1}),
        optax.piecewise_constant_schedule(1.0, {30: 0.5, 10: 0.1}),
    ),
    "piecewise, linear": (
        optim.piecewise(1.0, {10: 0.1, 30: 5.0}, "linear"),
        optax.piecewise_interpolate_schedule("linear", 1.0, {10: 0.1, 30: 5.0}),
    ),
    "piecewise, cosine": (
        optim.piecewise(2.0, {10: 0.1, 30: 5.0}, "cosine"),
        optax.piecewise_interpolate_schedule("cosine", 2.0, {10: 0.1, 30: 5.0}),
    ),
}


@pytest.mark.parametrize("name", OPTAX)
def test_values_equal_optax_with_count_zero_at_the_first_step(name: str) -> None:
    ours, theirs = OPTAX[name]
    with jax.enable_x64(True):
        expected = np.asarray(jax.jit(jax.vmap(theirs))(np.arange(60)), np.float64)
    np.testing.assert_allclose(ours(60).values(np.arange(1, 61)), expected, rtol=1e-13, atol=1e-16)


def test_lengths_left_out_take_the_horizon() -> None:
    steps = np.arange(1, 41)
    schedules = (
        optax.cosine_decay_schedule(1.0, 40),
        optax.linear_schedule(1.0, 0.0, 35, 5),
        optax.warmup_cosine_decay_schedule(0.0, 1.0, 4, 40),
    )
    with jax.enable_x64(True):
        cosine, linear, warm = jax.jit(jax.vmap(lambda count: [f(count) for f in schedules]))(steps - 1)
    np.testing.assert_allclose(optim.cosine(1.0)(40).values(steps), cosine, rtol=1e-13)
    np.testing.assert_allclose(optim.linear(1.0, 0.0, transition_begin=5)(40).values(steps), linear, rtol=1e-13)
    np.testing.assert_allclose(optim.warmup_cosine(1.0, 4)(40).values(steps), warm, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize(("total", "options", "expected"), TORCH_ONE_CYCLE)
def test_one_cycle_equals_the_figures_of_pytorch(total: int, options: dict[str, Any], expected: list[float]) -> None:
    values = optim.one_cycle(**options)(total).values(np.arange(1, total + 1))
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=0)


RANDOM_CYCLES = json.loads((Path(__file__).parent / "figures" / "torch_schedules.json").read_text())["one_cycle"]


@pytest.mark.parametrize("cycle", RANDOM_CYCLES, ids=range(len(RANDOM_CYCLES)))
def test_one_cycle_equals_pytorch_under_random_arguments_at_every_step(cycle: dict[str, Any]) -> None:
    values = optim.one_cycle(**cycle["options"])(cycle["total"]).values(np.arange(1, cycle["total"] + 1))
    np.testing.assert_allclose(values, cycle["rates"], rtol=1e-12, atol=0)


def _one_cycle_by_the_book(
    total: int, peak: float, pct: float, div: float, final: float, three: bool, linear: bool
) -> list[float]:
    """PyTorch's documented rule, one step at a time."""
    low, least = peak / div, peak / div / final
    if three:
        phases = [(pct * total - 1, low, peak), (2 * pct * total - 2, peak, low), (total - 1, low, least)]
    else:
        phases = [(pct * total - 1, low, peak), (total - 1, peak, least)]
    result = []
    for step in range(total):
        start = 0.0
        for number, (end, a, b) in enumerate(phases):
            if step <= end or number == len(phases) - 1:
                part = (step - start) / (end - start)
                result.append((b - a) * part + a if linear else b + (a - b) / 2.0 * (np.cos(np.pi * part) + 1.0))
                break
            start = end
    return result


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(5, 300),
    pct=st.floats(0.21, 0.48),
    div=st.floats(1.5, 50),
    final=st.floats(2, 1e5),
    three=st.booleans(),
    linear=st.booleans(),
)
def test_one_cycle_follows_the_documented_rule_for_any_arguments(
    total: int, pct: float, div: float, final: float, three: bool, linear: bool
) -> None:
    ours = optim.one_cycle(
        0.7,
        pct_start=pct,
        div_factor=div,
        final_div_factor=final,
        three_phase=three,
        anneal_strategy="linear" if linear else "cos",
    )(total)
    expected = _one_cycle_by_the_book(total, 0.7, pct, div, final, three, linear)
    np.testing.assert_allclose(ours.values(np.arange(1, total + 1)), expected, rtol=1e-12, atol=1e-18)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_one_cycle_equals_pytorch_itself() -> None:
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=50)
    expected = []
    for step in range(50):
        expected.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if step < 49:
            scheduler.step()
    np.testing.assert_allclose(optim.one_cycle(0.2)(50).values(np.arange(1, 51)), expected, rtol=1e-12)


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("three_phase", [False, True])
def test_one_cycle_is_finite_over_the_shortest_horizons(total: int, three_phase: bool) -> None:
    values = optim.one_cycle(1.0, pct_start=1 / 3, three_phase=three_phase)(total).values(np.arange(1, 6))
    assert np.isfinite(values).all()
    assert values[total - 1] == values[-1]


def test_inverse_sqrt_peaks_at_the_end_of_the_warmup_and_halves_at_four_times_it() -> None:
    curve = optim.inverse_sqrt(0.8, warmup_steps=10)(1000)
    # count = step - 1
    assert curve(1) == 0.0
    assert curve(6) == pytest.approx(0.4, rel=1e-14)
    assert curve(11) == pytest.approx(0.8, rel=1e-14)
    assert curve(41) == pytest.approx(0.4, rel=1e-14)


def test_a_warmup_longer_than_the_run_is_refused_with_both_numbers() -> None:
    with pytest.raises(ScheduleError, match="decay_steps is 20 and warmup_steps is 30"):
        optim.warmup_cosine(1e-3, 30)(20)


def test_a_table_gives_the_same_values_as_the_factory_with_both_names_of_the_peak() -> None:
    steps = np.arange(1, 51)
    expected = optim.one_cycle(1e-3, pct_start=0.2)(50).values(steps)
    for name in ("peak", "max_lr"):
        made = optim.schedule_from_config({"kind": "one_cycle", name: 1e-3, "pct_start": 0.2})
        assert isinstance(made, optim.NamedSchedule)
        np.testing.assert_array_equal(made(50).values(steps), expected)


def test_a_plateau_table_wraps_its_inner_schedule_or_number() -> None:
    made = optim.schedule_from_config({"kind": "plateau", "inner": 0.5, "patience": 3, "metric": "acc", "mode": "max"})
    assert isinstance(made, optim.Plateau)
    assert (made.inner, made.patience, made.metric, made.mode) == (0.5, 3, "acc", "max")
    around = optim.schedule_from_config({"kind": "plateau", "inner": {"kind": "cosine", "init_value": 1.0}})
    assert isinstance(around, optim.Plateau)
    assert isinstance(around.inner, optim.NamedSchedule)


def test_an_unknown_kind_names_the_nearest_one() -> None:
    with pytest.raises(ScheduleError) as caught:
        optim.schedule_from_config({"kind": "cosin", "init_value": 1.0}, "learning_rate")
    assert "cosine" in str(caught.value)
    assert "learning_rate" in str(caught.value)


def test_a_factory_refuses_a_value_out_of_its_range() -> None:
    with pytest.raises(ConfigError, match="pct_start"):
        optim.one_cycle(1e-3, pct_start=1.5)
