"""Schedules over a horizon: what is accepted, which step an optax schedule begins at, bitwise resumption."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli import optim
from nitro_cli.errors import HookError, ScheduleError
from nitro_cli.optim.value_source import resolve_schedule


def values(entry: Any, total: int, start: int = 1, count: int | None = None) -> np.ndarray:
    source, _ = resolve_schedule("learning_rate", entry, total)
    return source.values(start, total if count is None else count)


def test_a_factory_is_given_the_horizon_once_and_its_curve_the_step_from_one() -> None:
    horizons, steps = [], []

    def factory(total: int) -> Any:
        horizons.append(total)

        def curve(step: int) -> float:
            steps.append(step)
            return step / total

        return curve

    assert values(factory, 4).tolist() == [0.25, 0.5, 0.75, 1.0]
    assert horizons == [4]
    assert steps[:4] == [1, 2, 3, 4]
    assert max(steps) == 4


def test_an_optax_schedule_is_evaluated_from_count_zero_at_the_first_step() -> None:
    assert values(optax.linear_schedule(1.0, 0.0, 10), 5) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6], rel=1e-15)


def test_an_optax_schedule_from_a_factory_is_evaluated_from_count_zero_too() -> None:
    made = values(lambda total: optax.linear_schedule(1.0, 0.0, total), 4)
    assert made == pytest.approx([1.0, 0.75, 0.5, 0.25], rel=1e-15)


def test_a_factory_may_return_a_named_schedule() -> None:
    made = values(lambda total: optim.linear(1.0, 0.0), 4)
    assert made.tolist() == values(optim.linear(1.0, 0.0), 4).tolist() == [1.0, 0.75, 0.5, 0.25]


def test_a_function_that_returns_a_number_for_the_horizon_is_a_schedule_of_the_count() -> None:
    assert values(lambda count: 0.5**count, 4).tolist() == [1.0, 0.5, 0.25, 0.125]


def test_optax_schedules_are_computed_in_double_precision() -> None:
    schedule = optax.cosine_decay_schedule(1e-3, 1000)
    expected = [1e-3 * 0.5 * (1 + math.cos(math.pi * count / 1000)) for count in range(1000)]
    np.testing.assert_allclose(values(schedule, 1000), expected, rtol=1e-12)
    assert not jax.config.jax_enable_x64
    assert jnp.asarray(1.0).dtype == jnp.float32


def test_a_joined_schedule_with_a_plain_python_function_inside_falls_back_to_one_step_at_a_time() -> None:
    def branching(count: Any) -> float:
        return 1.0 if count < 2 else 0.5

    joined = optax.join_schedules([branching, optax.constant_schedule(0.1)], [3])
    assert values(joined, 5) == pytest.approx([1.0, 1.0, 0.5, 0.1, 0.1])


def test_an_optax_schedule_is_traced_once_for_a_block_and_sees_one_count() -> None:
    seen = []

    def member(count: Any) -> Any:
        seen.append(np.ndim(count))
        return 1.0 / (1.0 + count)

    made = values(optax.join_schedules([member, member], [100]), 256)
    assert made[:2].tolist() == [1.0, 0.5]
    assert made[100] == 1.0
    assert set(seen) == {0}
    assert len(seen) <= 4


def test_a_schedule_that_handles_one_count_only_is_vectorised_by_mapping() -> None:
    # it compares the count with an array of boundaries, so a vector of counts would be mixed up with them
    schedule = optax.piecewise_interpolate_schedule("linear", 1.0, {2: 0.5, 4: 0.5})
    assert values(schedule, 6) == pytest.approx([1.0, 0.75, 0.5, 0.375, 0.25, 0.25])


@pytest.mark.parametrize("number", [3, 0.5, np.float32(0.5), jnp.asarray(0.25)])
def test_a_number_is_a_constant(number: Any) -> None:
    source, _ = resolve_schedule("momentum", number, 10)
    assert source.constant == float(number)
    assert source.values(5, 3).tolist() == [float(number)] * 3


SCHEDULES = {
    "named": optim.one_cycle(1e-3),
    "optax": optax.warmup_cosine_decay_schedule(0.0, 1.0, 50, 700),
    "python": lambda total: lambda step: math.sin(step / total),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_step_has_the_same_value_bit_for_bit_wherever_a_table_begins(kind: str) -> None:
    whole = values(SCHEDULES[kind], 700, 1, 1000)
    resumed, _ = resolve_schedule("learning_rate", SCHEDULES[kind], 700)

    @settings(max_examples=30, deadline=None)
    @given(start=st.integers(1, 690), count=st.integers(1, 300))
    def check(start: int, count: int) -> None:
        assert resumed.values(start, count).tobytes() == whole[start - 1 : start - 1 + count].tobytes()

    check()


@pytest.mark.parametrize("entry", ["cosine", None, True, [1.0], lambda total: "x", lambda total: None])
def test_what_is_no_schedule_is_refused(entry: Any) -> None:
    with pytest.raises(ScheduleError, match="learning_rate"):
        values(entry, 10)


def test_a_factory_that_fails_is_reported_with_the_key_and_the_horizon() -> None:
    def factory(total: int) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(HookError, match=r"'learning_rate' could not be built[\s\S]*10 steps raised KeyError"):
        values(factory, 10)


def raising(count: Any) -> Any:
    raise ValueError("no such step")


@pytest.mark.parametrize(
    "entry",
    [lambda total: raising, raising, optax.join_schedules([raising, optax.constant_schedule(1.0)], [3])],
    ids=["of a factory", "of the count", "inside one of optax's"],
)
def test_a_schedule_that_raises_is_code_that_fails_with_the_exit_code_of_a_hook(entry: Any) -> None:
    with pytest.raises(HookError, match=r"'learning_rate'[\s\S]*ValueError: no such step") as failed:
        values(entry, 10)
    assert failed.value.exit_code == 1
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_value_that_is_not_finite_is_refused_with_its_step() -> None:
    with pytest.raises(ScheduleError, match="is inf at step 3"):
        values(lambda total: lambda step: math.inf if step == 3 else 1.0, 10)


def test_a_value_that_is_not_a_number_is_refused_with_its_step() -> None:
    with pytest.raises(ScheduleError, match="str at step 1"):
        values(lambda total: lambda step: "fast", 10)


def test_the_curve_of_another_horizon_is_another_curve() -> None:
    assert values(optim.cosine(1.0), 10)[5] != values(optim.cosine(1.0), 20)[5]
