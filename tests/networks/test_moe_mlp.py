"""Mixtures of experts against NumPy in float64, expert by expert and row by row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.errors import ConfigError
from nitro_cli.networks import MoEMLP, Network, load_balance
from nitro_cli.programs import adapt_returned
from nitro_cli.tasks import Categorical, Task

X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)


def built(**words: Any) -> tuple[Any, Any]:
    network = MoEMLP(**words, inputs=("x",), shapes={"x": "float32[5]"}, outputs=3)
    adapted = adapt_returned(network.hooks()["build_model"].function(jax.random.key(0)))
    rng = np.random.default_rng(1)
    return adapted, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), adapted.params)


def by_numpy(params: Any, x: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, shares and probabilities, with tanh between the layers."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    logits, shares, probabilities = [], [], []
    for row in x.astype(np.float64):
        held, share, probability = row, [], []
        for layer in p["hidden"].values():
            router = held @ layer["router"]["kernel"]
            best = np.argsort(-router)[:top_k]
            weights = np.exp(router[best] - router.max())
            weights /= weights.sum()
            mixed = sum(
                w * (held @ layer["experts"]["kernel"][e] + layer["experts"]["bias"][e])
                for w, e in zip(weights, best, strict=True)
            )
            share.append(np.isin(np.arange(len(router)), best) / top_k)
            probability.append(np.exp(router) / np.exp(router).sum())
            held = np.tanh(mixed)
        logits.append(held @ p["head"]["kernel"] + p["head"]["bias"])
        shares.append(share)
        probabilities.append(probability)
    return np.array(logits), np.array(shares), np.array(probabilities)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_it_computes_what_numpy_does_row_by_row(top_k: int) -> None:
    adapted, params = built(hidden=(4, 6), experts=4, top_k=top_k, activation="tanh")
    outputs, _ = adapted.apply(params, {}, (X,), train=False, key=None)
    logits, shares, probabilities = by_numpy(params, X, top_k)
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["router"]["share"], shares, atol=1e-6)
    np.testing.assert_allclose(outputs["router"]["probability"], probabilities, rtol=1e-4, atol=1e-6)


def test_the_balance_is_one_per_layer_where_all_experts_are_alike_and_more_where_one_has_all() -> None:
    even = {"share": np.full((8, 2, 4), 0.25), "probability": np.full((8, 2, 4), 0.25)}
    assert load_balance(even) == pytest.approx(2)
    alone = np.zeros((8, 1, 4))
    alone[..., 0] = 1
    assert load_balance({"share": alone, "probability": alone}) == pytest.approx(4)


def test_the_balance_has_a_gradient_for_the_router_and_none_for_the_experts() -> None:
    adapted, params = built(hidden=(4,), experts=3)

    def balance(params: Any) -> Any:
        return load_balance(adapted.apply(params, {}, (X,), train=False, key=None)[0]["router"])

    gradient = jax.grad(balance)(params)["hidden"]["0"]
    assert np.abs(gradient["router"]["kernel"]).max() > 0
    assert not np.asarray(gradient["experts"]["kernel"]).any()
    assert jnp.isfinite(balance(params))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"hidden": (), "experts": 2}, "hidden"),
        ({"hidden": (4,), "experts": 1}, "experts"),
        ({"hidden": (4,), "experts": 2, "top_k": 3}, "top_k = 3 is above experts = 2"),
        ({"hidden": (4,), "experts": 2, "top_k": 0}, "top_k"),
        ({"hidden": (4,), "experts": 2.0}, "experts"),
    ],
)
def test_counts_that_do_not_go_together_are_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MoEMLP(**words)


def test_it_trains_under_a_task_that_names_its_logits() -> None:
    class Mixed(Experiment):
        network: Network = MoEMLP(hidden=(8,), experts=3, norm="batch", dropout=0.1)
        task: Task = Categorical(2, output="logits")
        eval_loss = True
        max_epochs = 12
        learning_rate = 2e-2

        def build_data(self, dist: Any) -> dict[str, Any]:
            x = np.random.default_rng(0).normal(size=(128, 2)).astype(np.float32)
            label = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
            return {
                "train": ArrayBatches({"x": x, "label": label}, 16),
                "val": ArrayBatches({"x": x, "label": label}, 64),
            }

    nitro = Nitro(Mixed(), logger=None, checkpointer=None).train()
    assert nitro.history[-1]["accuracy"] > 0.75
    assert nitro.history[-1]["loss"] < nitro.history[1]["loss"]
