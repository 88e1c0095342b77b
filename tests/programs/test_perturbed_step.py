"""SAM, ASAM and a rule of one's own through the train program, against the papers' formulas in double precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Nitro
from nitro_cli.optim import ASAM, SAM, PerturbRule
from tests.tiny import CLASSES, Bare, Quick, points

RATE = 0.5
Layer = dict[str, np.ndarray]


class Plain(Bare):
    """Softmax regression by gradient descent, training only."""

    radius: float = 0.7
    samples: int = 24
    learning_rate = RATE
    checkpointer = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(self.samples, 1), self.batch_size)}

    def optimizer(self, group: str) -> Any:
        return optax.sgd


class Sharp(Plain):
    def grad_rule(self) -> Any:
        return SAM(self.radius)


class Adaptive(Plain):
    def grad_rule(self) -> Any:
        return ASAM(self.radius, eta=0.05)


class SharpKernel(Sharp):
    def no_perturb(self, path: Any, leaf: Any) -> bool:
        return path[-1] == "bias"


class AdaptiveEverywhere(Adaptive):
    def adaptive_perturb(self, path: Any, leaf: Any) -> bool:
        return True


@dataclass(frozen=True)
class SignStep(PerturbRule):
    """Against every weight by the same amount."""

    size: float

    def perturbation(self, grads: Mapping[str, Any], params: Any, adaptive: Any) -> Mapping[str, Any]:
        return {text: self.size * jnp.sign(gradient) for text, gradient in grads.items()}


class Signed(Plain):
    def grad_rule(self) -> Any:
        return SignStep(self.radius)


def gradient(layer: Layer, x: np.ndarray, y: np.ndarray) -> Layer:
    """Of the mean cross entropy of softmax regression, in double precision."""
    logits = x.astype(np.float64) @ layer["kernel"] + layer["bias"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    error = (shares / shares.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
    return {"kernel": x.astype(np.float64).T @ error, "bias": error.sum(0)}


def norm(layer: Layer) -> float:
    return float(np.sqrt(sum(np.sum(value**2) for value in layer.values())))


def sam(layer: Layer, g: Layer, rho: float) -> Layer:
    """Foret et al., equation 2: rho * g / |g|."""
    return {name: rho * g[name] / norm(g) for name in g}


def sam_kernel(layer: Layer, g: Layer, rho: float) -> Layer:
    return {"kernel": rho * g["kernel"] / norm({"kernel": g["kernel"]}), "bias": np.zeros(CLASSES)}


def asam_of(adaptive: tuple[str, ...]) -> Callable[..., Layer]:
    """Kwon et al., equation 7: rho * T^2 g / |T g|, T = |w| + eta, 1 for the other leaves."""

    def move(layer: Layer, g: Layer, rho: float) -> Layer:
        size = {name: np.abs(w) + 0.05 if name in adaptive else np.ones_like(w) for name, w in layer.items()}
        length = norm({name: size[name] * g[name] for name in g})
        return {name: rho * size[name] ** 2 * g[name] / length for name in g}

    return move


def signed(layer: Layer, g: Layer, rho: float) -> Layer:
    return {name: rho * np.sign(g[name]) for name in g}


def stepped(layer: Layer, move: Callable[..., Layer], rho: float, parts: list[tuple[np.ndarray, np.ndarray]]) -> Layer:
    """One descent step along the mean over the micro-batches of the gradient at the moved weights."""
    total = {name: np.zeros_like(value) for name, value in layer.items()}
    for x, y in parts:
        added = move(layer, gradient(layer, x, y), rho)
        there = gradient({name: layer[name] + added[name] for name in layer}, x, y)
        total = {name: total[name] + there[name] / len(parts) for name in layer}
    return {name: layer[name] - RATE * total[name] for name in layer}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def initial(nitro: Nitro) -> Layer:
    return {name: np.asarray(value, np.float64) for name, value in nitro.params.items()}


def assert_close(nitro: Nitro, wanted: Layer) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(nitro.params[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


RULES = {
    "SAM": (Sharp, sam),
    "SAM of the kernel": (SharpKernel, sam_kernel),
    "ASAM": (Adaptive, asam_of(("kernel",))),
    "ASAM of every leaf": (AdaptiveEverywhere, asam_of(("kernel", "bias"))),
    "a rule of one's own": (Signed, signed),
}


def trained_by_hand(layer: Layer, move: Callable[..., Layer], radii: list[float]) -> Layer:
    """One step per radius, over the batches in order."""
    data = points(8 * len(radii), 1)
    for step, rho in enumerate(radii):
        rows = slice(8 * step, 8 * step + 8)
        layer = stepped(layer, move, rho, [(data["x"][rows], data["y"][rows])])
    return layer


@pytest.mark.parametrize("name", RULES)
def test_each_step_is_the_papers_formula(name: str, tmp_path: Any) -> None:
    cls, move = RULES[name]
    nitro = Nitro(cls(logger=None), run_dir=tmp_path)
    before = initial(nitro)
    nitro.train()
    wanted, plain = (trained_by_hand(before, move, [rho] * 3) for rho in (0.7, 0.0))
    assert np.abs(wanted["kernel"] - plain["kernel"]).max() > 0.01
    assert_close(nitro, wanted)


class Moved(Quick):
    """Dropout, running statistics and momentum; the plain gradient for a negative radius."""

    radius: float = 0.0
    samples: int = 24
    checkpointer = None
    logger = None

    def build_data(self, dist: Any) -> Any:
        return {"train": super().build_data(dist)["train"]}

    def grad_rule(self) -> Any:
        return SAM(self.radius) if self.radius >= 0 else None


def test_the_radius_zero_trains_as_the_plain_gradient_bit_for_bit(tmp_path: Any) -> None:
    plain = Nitro(Moved(radius=-1.0), run_dir=tmp_path / "plain").train()
    sharp = Nitro(Moved(radius=0.0), run_dir=tmp_path / "sharp").train()
    assert plain.step == 6
    assert bits((sharp.params, sharp.state)) == bits((plain.params, plain.state))


def test_loss_and_layer_state_are_of_the_unperturbed_pass(tmp_path: Any) -> None:
    first = {"train": ArrayBatches(points(8, 1), 8)}
    near, far = (
        Nitro(Moved(radius=radius), data=first, run_dir=tmp_path, max_epochs=1).train() for radius in (0.0, 3.0)
    )
    assert far.history[1]["train_loss"] == near.history[1]["train_loss"]
    assert bits(far.state) == bits(near.state)
    assert bits(far.params) != bits(near.params)


def test_each_micro_batch_is_perturbed_by_its_own_gradient(tmp_path: Any) -> None:
    nitro = Nitro(Sharp(samples=16, accum=2, logger=None), run_dir=tmp_path)
    before, data = initial(nitro), points(16, 1)
    nitro.train()
    halves = [(data["x"][:8], data["y"][:8]), (data["x"][8:], data["y"][8:])]
    assert_close(nitro, stepped(before, sam, 0.7, halves))


@pytest.mark.parametrize(("cls", "key"), [(Sharp, "rho"), (Sharp, "grad.rho"), (Signed, "size")])
def test_a_scheduled_radius_reaches_each_step_and_the_log(cls: type[Plain], key: str, tmp_path: Any) -> None:
    nitro = Nitro(cls(), run_dir=tmp_path, schedules={key: lambda total: lambda step: 0.3 * step / total})
    before = initial(nitro)
    nitro.train()
    assert_close(nitro, trained_by_hand(before, sam if cls is Sharp else signed, [0.1, 0.2, 0.3]))
    lines = [json.loads(line) for line in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
    name = f"schedule/{key.removeprefix('grad.')}"
    logged = [line[name] for line in lines if line.get("context") == "train"]
    assert logged == pytest.approx([0.1, 0.2, 0.3], rel=1e-6)


def test_a_frozen_group_stays_bit_for_bit_under_everything_and_has_no_state(tmp_path: Any) -> None:
    class Frozen(Adaptive):
        weight_decay = 0.1
        gradient_clip_norm = 0.5

        def optimizer(self, group: str) -> Any:
            return optax.adam

        def param_group(self, path: Any) -> str:
            return "frozen" if path[0] == "kernel" else "default"

        def no_decay(self, path: Any, leaf: Any) -> bool:
            return False

    nitro = Nitro(Frozen(logger=None), run_dir=tmp_path)
    before = jax.tree.map(np.asarray, nitro.params)
    nitro.train()
    assert nitro.step == 3
    assert np.asarray(nitro.params["kernel"]).tobytes() == before["kernel"].tobytes()
    assert not np.array_equal(nitro.params["bias"], before["bias"])
    assert set(nitro.train_state.opt) == {"default"}
    assert {leaf.shape for leaf in jax.tree.leaves(nitro.train_state.opt)} == {(), (CLASSES,)}
