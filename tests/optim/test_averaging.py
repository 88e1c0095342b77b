"""The exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli import optim
from nitro_cli.experiment import EMA

UPDATE = jax.jit(optim.ema_update)


@settings(max_examples=25, deadline=None)
@given(beta=st.floats(0.5, 0.9999), warmup=st.booleans(), every=st.integers(1, 4))
def test_the_average_follows_its_formula(beta: float, warmup: bool, every: int) -> None:
    weights = np.linspace(1.0, 3.0, 12).astype(np.float32)
    average, expected = optim.ema_init({"w": jnp.zeros(())}), 0.0
    for t, w in enumerate(weights, start=1):
        average = UPDATE(average, {"w": jnp.asarray(w)}, t, np.float32(beta), float(warmup), float(every))
        if t % every == 0:
            b = min(beta, (1 + t) / (10 + t)) if warmup else beta
            expected = b * expected + (1 - b) * float(w)
    assert float(average["w"]) == pytest.approx(expected, rel=2e-4)


def test_it_starts_as_a_copy_of_the_weights(params: Any) -> None:
    start = optim.ema_init(params)
    assert start["head"]["bias"] is not params["head"]["bias"]
    assert start["head"]["bias"].unsafe_buffer_pointer() != params["head"]["bias"].unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float32])
def test_the_average_of_narrow_weights_is_kept_in_float32(dtype: Any) -> None:
    average = optim.ema_init({"w": jnp.ones((), dtype)})
    for t in range(1, 2001):
        average = UPDATE(average, {"w": jnp.asarray(2, dtype)}, t, np.float32(0.999), 0.0, 1.0)
    assert average["w"].dtype == jnp.float32
    # 2 - 0.999 ** 2000; in bfloat16 it stays 1.0, in float16 it sticks at 1.508
    assert float(average["w"]) == pytest.approx(1.8648, rel=1e-4)


def test_beta_warmup_and_every_are_traced_and_present_only_with_an_average(base: type[Any], params: Any) -> None:
    def columns(e: Any) -> dict[str, float]:
        hyper = optim.bind(e, optim.build_layout(e, params), total_steps=5)
        return dict(zip(hyper.columns, hyper.table(1, 1)[0].tolist(), strict=True))

    assert not any(name.startswith("ema") for name in columns(base()))
    found = columns(base(ema=EMA(0.75, warmup=False, every=3)))
    assert {name: found[name] for name in found if name.startswith("ema")} == {
        "ema_beta": 0.75,
        "ema_warmup": 0.0,
        "ema_every": 3.0,
    }
    UPDATE(params, params, 1, 0.5, 1.0, 2.0)
    before = UPDATE._cache_size()
    UPDATE(params, params, 2, 0.9, 0.0, 7.0)
    assert UPDATE._cache_size() == before


def test_leaves_that_are_not_floating_follow_the_weights() -> None:
    average = UPDATE({"n": jnp.asarray(1)}, {"n": jnp.asarray(5)}, 1, 0.9, 1.0, 1.0)
    assert int(average["n"]) == 5
