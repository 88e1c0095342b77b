"""One small net, with batch normalisation and dropout, in four libraries: 4 inputs, 8 hidden, 2 outputs."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nitro_cli.programs import setup_cache


@pytest.fixture(autouse=True)
def no_programs_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a program was compiled must not depend on what earlier tests left on disk."""
    monkeypatch.setenv("NITRO_CACHE_DIR", "off")
    setup_cache()


INPUTS, HIDDEN, OUTPUTS, RATE = 4, 8, 2, 0.5


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(HIDDEN)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(RATE, deterministic=not train)(x)
        return nn.Dense(OUTPUTS)(x)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(RATE, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(HIDDEN, OUTPUTS, rngs=rngs)])

    def __call__(self, x):
        return self.layers[0](self.dropout(self.norm(self.first(x))))


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(INPUTS, HIDDEN, key=first)
        self.norm = eqx.nn.BatchNorm(HIDDEN, axis_name="batch", mode="ema", momentum=0.9)
        self.dropout = eqx.nn.Dropout(RATE)
        self.last = eqx.nn.Linear(HIDDEN, OUTPUTS, key=last)

    def __call__(self, x, state, *, key):
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(x, key=key)), state


def function_net(params, state, x, train, key):
    x = x @ params["first"]
    mean, var = x.mean(0), x.var(0)
    new_state = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
    if not train:
        mean, var = state["mean"], state["var"]
    x = (x - mean) / jnp.sqrt(var + 1e-5)
    if train:
        x = jnp.where(jax.random.bernoulli(key, 1 - RATE, x.shape), x / (1 - RATE), 0)
    return x @ params["last"], new_state


def build_linen(values, key):
    model = LinenNet()
    return model, model.init(key, jnp.zeros((1, INPUTS)), False), None


def build_nnx(values, key):
    return NnxNet(nnx.Rngs(key))


def build_equinox(values, key):
    model, state = eqx.nn.make_with_state(EquinoxNet)(key)
    return model, None, state


def build_function(values, key):
    first, last = jax.random.split(key)
    params = {
        "first": jax.random.normal(first, (INPUTS, HIDDEN)),
        "last": jax.random.normal(last, (HIDDEN, OUTPUTS)),
    }
    return function_net, params, {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}


BUILDS = {"linen": build_linen, "nnx": build_nnx, "equinox": build_equinox, "function": build_function}


@pytest.fixture(scope="session")
def builds():
    """`build_model` of the net by library."""
    return BUILDS
