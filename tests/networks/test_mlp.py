"""Perceptrons from fields: what they compute, what follows from data and task, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.errors import ConfigError
from nitro_cli.networks import ACTIVATIONS, MLP, Network, register_network
from nitro_cli.networks.layers import activation
from nitro_cli.programs import adapt_returned
from nitro_cli.registry import read_config
from nitro_cli.tasks import Categorical, Task
from tests.networks.golden_cases import Case, golden, tree

CASES = golden("perceptrons")


def built(network: Network, **shapes: str) -> tuple[Any, Any, Any]:
    """The model of a network whose sizes are written."""
    network = network.replace(inputs=tuple(shapes), shapes=shapes)
    adapted = adapt_returned(network.hooks()["build_model"].function(jax.random.key(0)))
    return adapted, adapted.params, adapted.state


def test_the_cases_have_every_activation_and_norm() -> None:
    assert {name.split()[0] for name in CASES} >= set(ACTIVATIONS)
    assert {name.split()[1] for name in CASES} == {"none", "layer", "batch"}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    case: Case = CASES[name]
    activations = tuple(str(word) for word in case["activations"] if word)
    widths = tuple(len(case[f"params/hidden/{number}/bias"]) for number in range(len(activations)))
    network = MLP(hidden=widths, activations=activations or None, norm=name.split()[1], outputs=2)
    adapted, fresh, state = built(network, x="float32[6]")
    params = tree(case, "params")
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, params)

    def weighed(params: Any, x: Any) -> Any:
        outputs, _ = adapted.apply(params, state, (x,), train=True, key=None)
        return (outputs * case["weights"]).sum(), outputs

    (_, outputs), (own, of_x) = jax.value_and_grad(weighed, argnums=(0, 1), has_aux=True)(params, case["x"])
    np.testing.assert_allclose(outputs, case["outputs"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, case["gradient/x"], rtol=1e-4, atol=1e-5)
    expected = tree(case, "gradient/params")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), own, expected)


def test_batch_norm_keeps_a_running_mean_and_variance_and_goes_by_them_in_evaluation() -> None:
    adapted, params, state = built(MLP(hidden=(3,), norm="batch", activation="identity", outputs=2), x="float32[4]")
    x = np.random.default_rng(0).normal(2.0, 3.0, (50, 4)).astype(np.float32)
    _, moved = adapted.apply(params, state, (x,), train=True, key=None)
    before = x.astype(np.float64) @ np.asarray(params["hidden"]["0"]["kernel"], np.float64)
    running = moved["hidden"]["0"]["norm"]
    np.testing.assert_allclose(running["mean"], 0.1 * before.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(running["variance"], 0.9 + 0.1 * before.var(axis=0), rtol=1e-4)
    outputs, unmoved = adapted.apply(params, moved, (x,), train=False, key=None)
    scaled = (before - running["mean"]) / np.sqrt(np.asarray(running["variance"]) + 1e-5)
    np.testing.assert_allclose(outputs, scaled @ params["head"]["kernel"], rtol=1e-3, atol=1e-3)
    assert unmoved is moved


def test_kernels_begin_with_variance_one_over_what_comes_in_and_biases_with_zero() -> None:
    _, params, _ = built(MLP(hidden=(400,), outputs=300), x="float32[20, 30]")
    for layer, inner in ((params["hidden"]["0"], 600), (params["head"], 400)):
        kernel = np.asarray(layer["kernel"])
        assert kernel.shape[0] == inner
        assert kernel.var() == pytest.approx(1 / inner, rel=0.02)
        assert np.abs(kernel).max() < 2.3 / np.sqrt(inner)
        assert not np.asarray(layer["bias"]).any()


def test_a_rate_drops_that_share_of_each_layer_in_training_alone() -> None:
    adapted, params, state = built(MLP(hidden=(2000,), activation="identity", outputs=1), x="float32[2000]")
    params = {"hidden": {"0": {"kernel": jnp.eye(2000), "bias": jnp.zeros(2000)}}, "head": params["head"]}
    params["head"] = {"kernel": jnp.ones((2000, 1)), "bias": jnp.zeros(1)}
    x = jnp.ones((1, 2000))
    for keywords in ({"dropout": 0.25}, {"dropouts": jnp.array([0.25])}):
        words: dict[str, Any] = {"train": True, "key": jax.random.key(0), "keywords": keywords}
        kept = float(adapted.apply(params, state, (x,), **words)[0][0, 0]) * 0.75 / 2000
        assert kept == pytest.approx(0.75, abs=0.04)
        words |= {"train": False, "key": None}
        assert float(adapted.apply(params, state, (x,), **words)[0][0, 0]) == 2000


def test_logits_are_float32_of_half_precision_too() -> None:
    adapted, params, state = built(MLP(hidden=(8,), norm="layer", outputs=3), x="float32[4]")
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert adapted.apply(half, state, (jnp.ones((2, 4), jnp.bfloat16),), train=False, key=None)[0].dtype == jnp.float32


def test_a_softmax_between_layers_is_computed_in_float32_of_half_precision_too() -> None:
    x = np.asarray(jnp.asarray(np.random.default_rng(0).normal(0, 3, (16, 512)), jnp.bfloat16), np.float64)
    told = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    found = activation("softmax")(jnp.asarray(x, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), told, rtol=2**-8)


def test_without_hidden_layers_it_is_the_logistic_regression_of_scikit_learn() -> None:
    data, label = load_breast_cancer(return_X_y=True)
    x = jnp.asarray((data - data.mean(axis=0)) / data.std(axis=0), jnp.float32)
    adapted, params, state = built(MLP(outputs=2), x="float32[30]")
    start, unflatten = ravel_pytree(params)

    def logits(flat: Any) -> Any:
        return adapted.apply(unflatten(flat), state, (x,), train=False, key=None)[0]

    def objective(flat: Any) -> Any:  # two classes of opposite weights: half of their difference's penalty
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits(flat)), label[:, None], axis=1)
        return jnp.square(unflatten(flat)["head"]["kernel"]).sum() - picked.sum()

    step = jax.jit(jax.value_and_grad(objective))
    fitted = minimize(lambda flat: [np.float64(part) for part in step(jnp.float32(flat))], start, jac=True).x
    told = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(np.asarray(x), label).predict_proba(np.asarray(x))
    np.testing.assert_allclose(jax.nn.softmax(logits(jnp.float32(fitted))), told, atol=2e-3)


def test_hidden_layers_are_marked_by_their_names() -> None:
    adapted, params, state = built(MLP(hidden=(8, 8), outputs=3), x="float32[4]")

    def forward(x: Any) -> Any:
        return adapted.apply(params, state, (x,), train=False, key=None)[0]

    equations = jax.make_jaxpr(forward)(jnp.ones((2, 4))).eqns
    assert [e.params["name"] for e in equations if e.primitive.name == "name"] == ["hidden/0", "hidden/1"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"hidden": [True]}, "hidden"),
        ({"hidden": [128.0]}, "hidden"),
        ({"hidden": ["8"]}, "hidden"),
        ({"hidden": [0]}, "hidden"),
        ({"hidden": [8], "activations": ["relu", "tanh"]}, "activations has 2 entries, and hidden has 1 layers"),
        ({"hidden": [8], "dropouts": [0.1, 0.2]}, "dropouts has 2 entries"),
        ({"hidden": [8], "dropout": 1.0}, "dropout"),
        ({"hidden": [8], "dropout": -0.1}, "dropout"),
        ({"hidden": [8], "activation": "rleu"}, "activation"),
        ({"hidden": [8], "norm": "group"}, "norm"),
        ({"hiden": [8]}, "hiden"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MLP(**values)


def test_numpy_integers_are_counts() -> None:
    assert MLP(hidden=(np.int64(8),)).hidden == (8,)


class Digits(Experiment):
    """Data of one's own; the rest are parts."""

    network: Network = MLP(hidden=(8,), inputs=("image",))
    task: Task = Categorical(3)
    eval_loss = True
    logger = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        rows = {"image": rng.normal(size=(24, 2, 3)).astype(np.float32), "label": np.arange(24, dtype=np.int32) % 3}
        return {"train": ArrayBatches(rows, 8), "val": ArrayBatches(rows, 8)}


def test_sizes_follow_from_batch_and_task_and_lie_in_the_record(tmp_path: Path) -> None:
    nitro = Nitro(Digits(), run_dir=tmp_path).train()
    assert nitro.experiment.network.shapes == {"image": "float32[2, 3]"}
    assert nitro.experiment.network.outputs == 3
    assert nitro.params["hidden"]["0"]["kernel"].shape == (6, 8)
    assert nitro.params["head"]["kernel"].shape == (8, 3)
    owners = {row["hook"]: row["of"] for row in nitro.report.as_json()["hooks"]}
    assert owners["build_model"] == owners["forward"] == "network (mlp)"
    resolved = read_config(nitro.run_path / "config.toml", cls=Digits)
    assert str(resolved.origin("network.outputs")).startswith("derived")
    again = Nitro(resolved, weights=f"{tmp_path}:latest:latest", data={})
    image = np.ones((2, 2, 3), np.float32)
    np.testing.assert_array_equal(again.predict({"image": image}), nitro.predict({"image": image}))
    Nitro(Digits(), run_dir=tmp_path, resume="auto", max_epochs=2).train()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"outputs": 4}, "mlp has outputs = 4, and the task needs 3"),
        ({"shapes": {"image": "float32[2, 4]"}}, "the batch has"),
        ({"inputs": ("picture",)}, "the network takes 'picture', which the batch has not"),
        ({"shapes": {"image": "float32(2)"}}, "is no shape of a row"),
    ],
)
def test_a_written_size_that_disagrees_is_refused_with_both(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Nitro(Digits(network=MLP(**{"inputs": ("image",), **values})))
    assert told in str(refused.value)


def test_a_written_shape_that_agrees_is_taken() -> None:
    Nitro(Digits(network=MLP(inputs=("image",), shapes={"image": "float32[2,3]"}, outputs=3)))


def test_what_cannot_be_known_without_data_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the shapes of the inputs of mlp are not known"):
        Nitro(Digits(), data={})
    with pytest.raises(ConfigError, match="nothing says how wide the output of mlp is"):
        Nitro(Digits(task=Categorical()))


def test_rates_are_inputs_of_the_program_and_schedules_reach_them(tmp_path: Path, compiled: Callable[[], int]) -> None:
    def trained(rate: float, **words: Any) -> Nitro:
        network = MLP(hidden=(8,), dropout=rate, inputs=("image",))
        return Nitro(Digits(network=network), checkpointer=None, run_dir=tmp_path, **words).train()

    first = trained(0.0)
    before = compiled()
    other = trained(0.5)
    assert compiled() == before
    assert first.history[-1]["train_loss"] != other.history[-1]["train_loss"]
    schedule = {"network.dropout": {"kind": "linear", "init_value": 0.0, "end_value": 0.9}}
    assert trained(0.0, schedules=schedule).history[-1]["train_loss"] != first.history[-1]["train_loss"]
    first.set_device(**{"network.dropout": 0.3})
    with pytest.raises(ConfigError, match="dropout"):
        first.set_device(**{"network.dropout": 1.0})


@register_network("tests.doubled")
class Doubled(Network):
    """Two times a number."""

    def build(self, rng: Any, shapes: Any, outputs: int | None) -> Any:
        width = shapes["image"].shape[-1]
        return (lambda params, state, x: x.sum(axis=1) * params["two"]), {"two": jnp.full(width, 2.0)}, {}


def test_a_network_of_ones_own_is_named_by_its_id() -> None:
    e = Digits(network={"kind": "tests.doubled", "inputs": ["image"]})
    image = np.ones((1, 2, 3), np.float32)
    np.testing.assert_array_equal(Nitro(e).predict({"image": image}), [[4.0, 4.0, 4.0]])
    with pytest.raises(ConfigError, match=r"there is a network tests\.doubled already"):

        @register_network("tests.doubled")
        class Other(Network):
            def build(self, rng: Any, shapes: Any, outputs: int | None) -> Any: ...
