"""Experiments that are parts and nothing else: every preset builds, and they learn what other libraries learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge

from experiments.generic import Classify, Regress
from nitro_cli import Nitro, load_bundle
from nitro_cli.data.sets import Sklearn
from nitro_cli.errors import ConfigError
from nitro_cli.networks import MLP
from nitro_cli.optim import Optim
from nitro_cli.registry import read_config

PRESETS = Path(__file__).parents[2] / "presets"
ALL = [(kind, path.stem) for kind in (Classify, Regress) for path in sorted((PRESETS / kind.__name__).glob("*.toml"))]
QUIET: dict[str, Any] = {"logger": None, "checkpointer": None}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PRESETS.parent)


def preset(kind: type, name: str, **fields: Any) -> Any:
    return kind.from_preset(name, **fields)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_preset_builds_its_data_and_a_model_of_its_sizes(kind: type, name: str) -> None:
    nitro = Nitro(preset(kind, name), **QUIET)
    assert {"train", "val", "test"} <= set(nitro.data)
    assert nitro.experiment.network.outputs == (nitro.experiment.task.num_classes if kind is Classify else 1)
    images = {name: split[:4] for name, split in nitro.data["test"].selected().items()}
    taken = {name: images[name] for name in nitro.experiment.network.inputs}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nitro.predict(taken)))


def test_a_preset_trains_and_is_rebuilt_without_data_and_exported(tmp_path: Path) -> None:
    nitro = Nitro(preset(Classify, "smoke"), run_dir=tmp_path / "runs").train()
    assert nitro.evaluate("test")["accuracy"] > 0.5
    image = nitro.data["test"].selected()["image"][:3]
    served = Nitro(
        read_config(nitro.run_path / "config.toml", cls=Classify), weights=f"{tmp_path / 'runs'}:latest:best", data={}
    )
    np.testing.assert_array_equal(served.predict({"image": image}), nitro.predict({"image": image}))
    made = served.export("bundle")
    given = load_bundle(made)(image[:1])
    np.testing.assert_allclose(given["outputs"], nitro.predict({"image": image})[:1], atol=1e-5)
    assert given["probabilities"].sum() == pytest.approx(1, abs=1e-5)


NETWORKS: list[dict[str, Any]] = [
    {"kind": "conv", "channels": [2], "kernel": 3},
    {"kind": "moe_mlp", "hidden": [4], "experts": 3},
    {"kind": "vit", "patch": 7, "width": 8, "depth": 1, "heads": 2},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_every_kind_of_network_is_exported_for_any_number_of_rows(network: dict[str, Any], tmp_path: Path) -> None:
    task = {"kind": "categorical"} | ({"output": "logits"} if network["kind"] == "moe_mlp" else {})
    nitro = Nitro(preset(Classify, "smoke", network=network, task=task), run_dir=tmp_path, **QUIET)
    image = nitro.data["test"].selected()["image"][:5]
    given = load_bundle(nitro.export())(image)
    expected = nitro.predict({"image": image})
    expected = expected["logits"] if isinstance(expected, dict) else expected
    np.testing.assert_allclose(given["logits" if "logits" in given else "outputs"], expected, atol=1e-5)


def test_parts_say_who_supplies_what() -> None:
    owners = {row["hook"]: row["of"] for row in Nitro(preset(Classify, "iris"), **QUIET).report.as_json()["hooks"]}
    assert owners["build_data"] == owners["prepare"] == "data (sklearn)"
    assert owners["build_model"] == owners["forward"] == "network (mlp)"
    assert owners["loss"] == owners["metrics"] == "task (categorical)"


def test_classes_that_disagree_are_refused_naming_both() -> None:
    with pytest.raises(ConfigError, match=r"num_classes = 3.*num_classes = 4"):
        Nitro(preset(Classify, "iris", task={"kind": "categorical", "num_classes": 4}), **QUIET)


def full_batch(kind: type, name: str, l2: float, **fields: Any) -> Nitro:
    """A linear model at its optimum: the whole split in one batch, gradient descent with momentum."""
    optim = Optim("sgd", l2=l2, momentum=0.9)
    data = Sklearn(name, batch_size="full", standardize=True)
    e = kind(data=data, network=MLP(), optim=optim, gradient_clip_norm=0.0, **fields)
    return Nitro(e, **QUIET, max_epochs=400).train()


def columns(nitro: Nitro) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The training columns brought to one scale by NumPy, and all fields."""
    rows = nitro.data["train"].selected()
    x = rows["x"].astype(np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0), rows


def test_a_linear_model_is_scikit_learns_logistic_regression() -> None:
    strength = 0.5
    count = 398
    nitro = full_batch(Classify, "breast_cancer", 1 / (strength * count), learning_rate=0.4)
    x, rows = columns(nitro)
    assert len(x) == count
    # Two columns of weights share the penalty of one: half of it is left of their difference.
    model = LogisticRegression(C=2 * strength, tol=1e-10, max_iter=10_000).fit(x, rows["label"])
    p = model.predict_proba(x)
    theirs = -np.log(p[np.arange(count), rows["label"]]).mean()
    assert nitro.evaluate("train")["loss"] == pytest.approx(theirs, abs=1e-4)
    assert datasets.load_breast_cancer().target_names.tolist() == list(nitro.experiment.task.labels)


def test_a_linear_model_is_scikit_learns_ridge() -> None:
    l2 = 0.05
    nitro = full_batch(Regress, "diabetes", l2, learning_rate=0.3)
    x, rows = columns(nitro)
    model = Ridge(alpha=l2 * len(x) / 2).fit(x, rows["target"][:, 0])
    theirs = np.square(model.predict(x) - rows["target"][:, 0]).mean()
    assert nitro.evaluate("train")["mse"] == pytest.approx(theirs, rel=1e-4)
    np.testing.assert_allclose(nitro.params["head"]["kernel"][:, 0], model.coef_, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_preset_trains_evaluates_exports_and_reloads(kind: type, name: str, tmp_path: Path) -> None:
    nitro = Nitro(preset(kind, name), max_epochs=1, run_dir=tmp_path / "runs").train()
    before = nitro.evaluate("test")
    again = Nitro(preset(kind, name), weights=f"{tmp_path / 'runs'}:latest:latest")
    assert again.evaluate("test") == before
    load_bundle(again.export("bundle"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("digits_conv", 0.98), ("mnist_conv", 0.99)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_convolutional_presets_are_as_good_as_they_say(name: str, least: float, seed: int, tmp_path: Path) -> None:
    nitro = Nitro(preset(Classify, name), seed=seed, run_dir=tmp_path).train()
    best = Nitro(preset(Classify, name), weights=f"{tmp_path}:latest:best")
    assert best.evaluate("test")["accuracy"] >= least, nitro.history
