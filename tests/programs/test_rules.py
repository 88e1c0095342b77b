"""The optimizers through the whole train program, against plain optax loops and figures of PyTorch.

One program trains all of them: a layer per rule, each in a group of its own, under the sum of their losses.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro

FIGURES = json.loads((Path(__file__).parent / "figures" / "torch_rules.json").read_text())
DATA = FIGURES["data"]
X, Y = np.asarray(DATA["x"], np.float32), np.asarray(DATA["y"], np.float32)
SIZE, EPOCHS = FIGURES["batch_size"], FIGURES["epochs"]
RATE, DECAY = FIGURES["learning_rate"], FIGURES["weight_decay"]
RADAM_RATE = FIGURES["radam_learning_rate"]

RULES: dict[str, Any] = {
    "radam": None,  # the default, which needs no hook
    "adam": optax.adam,
    "adamw": partial(optax.adamw, weight_decay=DECAY),
    "decayed adam": optax.adam,  # with the framework's decay
    "sgd": partial(optax.sgd, momentum=0.9),
    "nesterov": partial(optax.sgd, momentum=0.9, nesterov=True),
    "lion": partial(optax.lion, weight_decay=0.0),
    "muon": optax.contrib.muon,
}
IN_OPTAX = {**RULES, "radam": optax.radam, "decayed adam": RULES["adamw"]}
IN_TORCH = {"decayed adam": "adamw", **{name: name for name in FIGURES["trained"]}}


def all_layers(params: Any, state: Any, x: jax.Array) -> tuple[Any, Any]:
    return {name: jnp.tanh(x @ layer["kernel"] + layer["bias"]) for name, layer in params.items()}, state


class Layers(Experiment):
    """Least squares of a tanh layer, once per rule."""

    max_epochs = EPOCHS
    learning_rate = RATE
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches({"x": X, "y": Y}, SIZE)}

    def build_model(self, rng: jax.Array) -> Any:
        layer = {"kernel": jnp.asarray(DATA["kernel"]), "bias": jnp.asarray(DATA["bias"])}
        return all_layers, {name: dict(layer) for name in RULES}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any, *, y: jax.Array) -> Any:
        return sum(jnp.mean((output - y) ** 2) for output in outputs.values())

    def param_group(self, path: Any) -> str:
        return path[0]

    def optimizer(self, group: str) -> Any:
        return RULES[group]

    def group_learning_rate(self, group: str) -> float:
        return RADAM_RATE if group == "radam" else self.learning_rate

    def group_weight_decay(self, group: str) -> float:
        return DECAY if group == "decayed adam" else 0.0

    def no_decay(self, path: Any, leaf: Any) -> bool:
        return False


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    nitro = Nitro(Layers(), run_dir=tmp_path_factory.mktemp("rules")).train()
    assert nitro.step == 50
    return nitro


@pytest.fixture(scope="module")
def looped() -> Any:
    """The plain loops, all in one program."""
    rates = {name: RADAM_RATE if name == "radam" else RATE for name in IN_OPTAX}
    transformations = {name: factory(rates[name]) for name, factory in IN_OPTAX.items()}

    @jax.jit
    def step(layers: Any, states: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(layer: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ layer["kernel"] + layer["bias"]) - y) ** 2)

        for name, rule in transformations.items():
            updates, states[name] = rule.update(jax.grad(loss)(layers[name]), states[name], layers[name])
            layers[name] = optax.apply_updates(layers[name], updates)
        return layers, states

    layer = {"kernel": jnp.asarray(DATA["kernel"]), "bias": jnp.asarray(DATA["bias"])}
    layers = dict.fromkeys(RULES, layer)
    states = {name: rule.init(layer) for name, rule in transformations.items()}
    for _ in range(EPOCHS):
        for start in range(0, len(X), SIZE):
            layers, states = step(layers, states, X[start : start + SIZE], Y[start : start + SIZE])
    return layers


@pytest.mark.parametrize("rule", RULES)
def test_fifty_steps_equal_a_plain_optax_loop(rule: str, trained: Nitro, looped: Any) -> None:
    for leaf, wanted in looped[rule].items():
        np.testing.assert_allclose(trained.params[rule][leaf], wanted, rtol=0, atol=1e-6, err_msg=leaf)


@pytest.mark.parametrize("rule", IN_TORCH)
def test_fifty_steps_equal_pytorch(rule: str, trained: Nitro) -> None:
    for leaf, wanted in FIGURES["trained"][IN_TORCH[rule]].items():
        np.testing.assert_allclose(trained.params[rule][leaf], wanted, rtol=0, atol=1e-5, err_msg=leaf)


def test_the_report_names_every_groups_rule_rate_decay_and_size(trained: Nitro) -> None:
    (band,) = (band for band in trained.report.bands if band.title == "parameter groups")
    rows = {row["group"]: row for row in band.rows}
    assert set(rows) == set(RULES)
    assert {name: (row["rate"], row["ratio"]) for name, row in rows.items()} == {
        name: ("0.001", 0.05) if name == "radam" else ("0.02", 1.0) for name in RULES
    }
    assert {row["parameters"] for row in rows.values()} == {15}
    assert {row["leaves"] for row in rows.values()} == {2}
    assert rows["radam"]["rule"] == "optax.radam"
    assert rows["adamw"]["rule"] == "optax.adamw(weight_decay=0.1)"
    assert rows["muon"]["rule"] == "optax.contrib.muon"
    assert rows["decayed adam"]["decay"] == "0.1"
    assert rows["adamw"]["decay"] == "the factory's own weight_decay"
    assert rows["sgd"]["decay"] == "none"
