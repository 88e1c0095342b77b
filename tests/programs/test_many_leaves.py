"""A model of many small arrays: what a step costs beyond one written by hand does not grow with their number."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.optim.norms import all_finite, global_norm

LAYERS = 32
X = np.ones((8, 4), np.float32)


def weights() -> dict[str, Any]:
    return {f"layer{i:02d}": {"kernel": jnp.full((4, 4), 0.1), "bias": jnp.zeros(4)} for i in range(LAYERS)}


def model(params: Any, state: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    for layer in params.values():
        x = x + 0.01 * jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x, state


class Many(Experiment):
    max_epochs: int = 1
    logger: Any = None
    checkpointer: Any = None
    weight_decay: float = 1e-4

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches({"x": X}, 8)}

    def build_model(self, rng: jax.Array) -> Any:
        return model, weights(), {}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)

    def loss(self, outputs: jax.Array) -> jax.Array:
        return jnp.mean(outputs**2)


def kernels(compiled: Any) -> int:
    return len(re.findall(r" (?:fusion|dot|concatenate)\(", compiled.as_text()))


def test_the_guard_and_the_clip_add_few_kernels_to_a_step_written_by_hand() -> None:
    optimizer = optax.chain(optax.scale_by_radam(), optax.add_decayed_weights(1e-4), optax.scale_by_learning_rate(1e-3))

    def step(params: Any, opt: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(model(p, {}, x)[0] ** 2))(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    by_hand = jax.jit(step).lower(weights(), optimizer.init(weights()), X).compile()
    nitro = Nitro(Many())
    nitro.train()
    arrays = 2 * LAYERS
    assert kernels(by_hand) > 5 * arrays
    assert kernels(nitro.programs["train"].compiled) - kernels(by_hand) < arrays / 2


def test_the_norm_is_that_of_all_leaves_small_and_large_and_of_each_dtype() -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 2), (70, 80), (), (0,)] + [(5,)] * 150
    leaves = {str(i): rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}
    leaves |= {f"half{i}": rng.normal(size=(7,)).astype(np.float16) for i in range(3)}
    leaves["complex"] = (rng.normal(size=(4,)) + 1j * rng.normal(size=(4,))).astype(np.complex64)
    norm = global_norm([jnp.asarray(leaf) for leaf in leaves.values()])
    flat = np.concatenate([np.abs(leaf.astype(np.complex128)).ravel() for leaf in leaves.values()])
    assert float(norm) == pytest.approx(np.linalg.norm(flat), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 70, 100])
def test_one_value_of_one_leaf_that_is_not_finite_is_seen(bad: float, where: int) -> None:
    leaves = [np.ones(3, np.float32) for _ in range(100)] + [np.ones((100, 50), np.float32), np.arange(3)]
    assert bool(all_finite([jnp.asarray(leaf) for leaf in leaves]))
    leaves[where].flat[-1] = bad
    assert not bool(all_finite([jnp.asarray(leaf) for leaf in leaves]))
