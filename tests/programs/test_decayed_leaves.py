"""Which parameters of each library's layers weight decay reaches by default, in the report and in the numbers."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nitro_cli import ArrayBatches, Experiment, Nitro

HEADS, WIDTH = 2, 4


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.MultiHeadDotProductAttention(HEADS)(x))
        return nn.DenseGeneral((2, 3))(nn.ConvLocal(WIDTH, (1,))(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(self.attention(x))


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv1d
    ln_1: eqx.nn.LayerNorm
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, key: Any) -> None:
        self.conv = eqx.nn.Conv1d(3, 3, 1, key=key)
        self.ln_1 = eqx.nn.LayerNorm((3, WIDTH))
        self.norms = [eqx.nn.LayerNorm((3, WIDTH))]

    def __call__(self, x: Any) -> Any:
        return self.norms[0](self.ln_1(self.conv(x)))


def by_hand(params: Any, state: Any, x: Any) -> Any:
    heads = jnp.einsum("btd,dhk->bthk", x, params["attention"]["kernel"]) + params["attention"]["b"]
    heads = heads * params["scale"] + params["gate_bias"] * params["lora_b"].sum()
    return heads, state


HAND = {
    "attention": {"kernel": jnp.ones((WIDTH, HEADS, 2)), "b": jnp.ones((HEADS, 2))},
    "scale": jnp.ones((HEADS, 2)),
    "gate_bias": jnp.ones((HEADS, 2)),
    "lora_b": jnp.ones((2, 2)),
}

X = np.random.default_rng(0).normal(size=(4, 3, WIDTH)).astype(np.float32)


class Decayed(Experiment):
    """One step of plain gradient descent with a decay that shows."""

    weight_decay = 0.5
    learning_rate = 0.1
    checkpointer = None
    logger = None
    library: str = "functions"

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches({"x": X}, 4)}

    def build_model(self, rng: Any) -> Any:
        if self.library == "linen":
            return LinenNet(), LinenNet().init(rng, X)
        if self.library == "nnx":
            return NnxNet(nnx.Rngs(0))
        if self.library == "equinox":
            return EquinoxNet(jax.random.key(0))
        return by_hand, HAND, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(outputs))

    def optimizer(self, group: str) -> Any:
        return optax.sgd


DECAYING = {
    "linen": {
        "MultiHeadDotProductAttention_0/query/kernel",
        "MultiHeadDotProductAttention_0/key/kernel",
        "MultiHeadDotProductAttention_0/value/kernel",
        "MultiHeadDotProductAttention_0/out/kernel",
        "ConvLocal_0/kernel",
        "DenseGeneral_0/kernel",
    },
    "nnx": {f"attention/{name}/kernel" for name in ("query", "key", "value", "out")},
    "equinox": {"conv/weight"},
    "functions": {"attention/kernel", "lora_b"},
}


@pytest.mark.parametrize("library", DECAYING)
def test_the_biases_and_scales_of_a_library_do_not_decay_whatever_their_rank(library: str) -> None:
    nitro = Nitro(Decayed(library=library))
    (band,) = (band for band in nitro.report.bands if band.title == "weight decay")
    told = {row["parameter"]: row["decays by"] for row in band.rows}
    assert {name for name, by in told.items() if by == "0.5"} == DECAYING[library]
    assert set(told.values()) == {"0.5", "nothing"}
    assert any(len(leaf.shape) > 1 for leaf in nitro.plan.model.layout.leaves if leaf.text not in DECAYING[library])
    before = {leaf.text: leaf for leaf in nitro.plan.model.layout.leaves}
    values = nitro.plan.model.layout.flatten(nitro.params)
    values = {name: np.asarray(value) for name, value in values.items()}
    after = nitro.plan.model.layout.flatten(nitro.train().params)
    for name in before:
        factor = 1 - 0.1 * 0.5 if name in DECAYING[library] else 1.0
        np.testing.assert_allclose(np.asarray(after[name]), values[name] * factor, rtol=1e-6, err_msg=name)


def test_without_decay_the_report_lists_nothing_and_a_factory_of_its_own_decay_is_said_to_reach_all() -> None:
    class Adamw(Decayed):
        def optimizer(self, group: str) -> Any:
            return optax.adamw

    plain, own = Nitro(Decayed(weight_decay=0.0)), Nitro(Adamw(weight_decay=0.0))
    assert "weight decay" not in [band.title for band in plain.report.bands]
    rows = own.report.as_json()["weight decay"]
    assert {row["parameter"] for row in rows} == {"attention/kernel", "attention/b", "scale", "gate_bias", "lora_b"}
    assert {row["decays by"] for row in rows} == {"the factory's own weight_decay"}


def test_a_scheduled_decay_is_named_with_what_it_reaches() -> None:
    rows = Nitro(Decayed(), schedules={"weight_decay": 0.25}).report.as_json()["weight decay"]
    assert {row["parameter"] for row in rows if row["decays by"] == "the schedule weight_decay"} == DECAYING[
        "functions"
    ]
