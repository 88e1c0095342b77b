"""Models of the model libraries leave nitro as plain functions do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import Nitro, load_bundle
from tests.export.served import Scores, inputs
from tests.tiny import CLASSES, FEATURES


def _linen(rng: jax.Array) -> Any:
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):  # type: ignore[misc]
        @linen.compact
        def __call__(self, x: Any, train: bool = True) -> Any:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
            x = linen.Dropout(0.5, deterministic=not train)(linen.LayerNorm()(linen.gelu(x)))
            return linen.Dense(CLASSES)(x)

    model = Net()
    variables = model.init(rng, jnp.ones((2, FEATURES)), train=False)
    return model, variables["params"], {"batch_stats": variables["batch_stats"]}


def _nnx(rng: jax.Array) -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.body = nnx.Linear(FEATURES, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.head = nnx.Linear(8, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.norm(self.body(x))))

    return Net(nnx.Rngs(rng)), None, None


def _equinox(rng: jax.Array) -> Any:
    return pytest.importorskip("equinox").nn.MLP(FEATURES, CLASSES, 8, 2, key=rng), None, None


@pytest.mark.parametrize("build", [_linen, _nnx, _equinox])
def test_a_model_of_a_library_is_exported(tmp_path: Path, build: Any) -> None:
    cls = type("Library", (Scores,), {"build_model": lambda self, rng: build(rng)})
    nitro = Nitro(cls(), data={})
    wanted = nitro.predict({"x": inputs(7)})
    found = load_bundle(nitro.export(dir=tmp_path))(x=inputs(7))["scores"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(nitro.export("onnx", dir=tmp_path))
    np.testing.assert_allclose(session.run(["scores"], {"x": inputs(7)})[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_model_in_half_precision_is_exported_and_gives_what_predict_gives(tmp_path: Path) -> None:
    def network(params: Any, state: Any, x: Any) -> Any:
        return (x.astype(jnp.bfloat16) @ params["w"]) @ params["v"], state

    def build(self: Any, rng: jax.Array) -> Any:
        a, b = jax.random.split(rng)
        shapes = {"w": (a, (FEATURES, 16)), "v": (b, (16, CLASSES))}
        return network, {n: jax.random.normal(k, s).astype(jnp.bfloat16) for n, (k, s) in shapes.items()}, {}

    nitro = Nitro(type("Half", (Scores,), {"build_model": build})(), data={})
    found = load_bundle(nitro.export(dir=tmp_path))(x=inputs(7))["scores"]
    wanted = nitro.predict({"x": inputs(7)})
    assert found.dtype == wanted.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2**-6, atol=2**-6)
    assert nitro.export("safetensors", dir=tmp_path).is_file()
