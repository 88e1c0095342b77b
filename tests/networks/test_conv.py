"""Convolution blocks against PyTorch; patches against XLA's convolution; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError
from nitro_cli.networks import Conv
from nitro_cli.networks.conv_model import convolved, patched, pooled
from nitro_cli.programs import adapt_returned
from tests.networks.golden_cases import golden, tree

CASES = golden("convolutions")


def built(shape: str, **words: Any) -> Any:
    network = Conv(**words, inputs=("image",), shapes={"image": shape}, outputs=3)
    return adapt_returned(network.hooks()["build_model"].function(jax.random.key(0)))


@pytest.mark.parametrize("form", ["patches", "convolution"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "convolution":
        monkeypatch.setattr("nitro_cli.networks.conv_model.PATCH_BYTES", 0)
    case = CASES[name]
    sizes = {key: int(case[key]) for key in ("kernel", "stride", "padding", "pool")}
    shape = f"float32{list(case['x'].shape[1:])}"
    adapted = built(shape, channels=tuple(int(n) for n in case["channels"]), **sizes)
    params = tree(case, "params")
    assert jax.tree.map(jnp.shape, adapted.params) == jax.tree.map(jnp.shape, params)

    def weighed(params: Any, x: Any) -> Any:
        outputs, _ = adapted.apply(params, {}, (x,), train=True, key=None)
        return (outputs * case["weights"]).sum(), outputs

    found = jax.jit(jax.value_and_grad(weighed, argnums=(0, 1), has_aux=True))(params, case["x"])
    (_, outputs), (own, of_x) = found
    np.testing.assert_allclose(outputs, case["outputs"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, case["gradient/x"], rtol=1e-4, atol=1e-5)
    expected = tree(case, "gradient/params")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-5), own, expected)
    traced = str(jax.make_jaxpr(lambda x: adapted.apply(params, {}, (x,), train=False, key=None)[0])(case["x"]))
    assert ("conv_general_dilated" in traced) == (form == "convolution")


@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(3, 9), width=st.integers(3, 9), inner=st.integers(1, 3), outer=st.integers(1, 3),
    side=st.integers(1, 4), stride=st.integers(1, 3), padding=st.integers(0, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_patches_give_what_the_convolution_gives(
    height: int, width: int, inner: int, outer: int, side: int, stride: int, padding: int, seed: int
) -> None:
    if min(height, width) + 2 * padding < side:
        return
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, height, width, inner)).astype(np.float32)
    kernel = rng.normal(size=(side, side, inner, outer)).astype(np.float32)
    expected = convolved(x, kernel, stride, padding)
    np.testing.assert_allclose(patched(x, kernel, stride, padding), expected, rtol=1e-5, atol=1e-5)


def test_the_kernel_enters_the_product_as_it_is() -> None:
    x, kernel = np.ones((2, 6, 6, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    equations = jax.make_jaxpr(lambda k: patched(x, k, 1, 0))(kernel)
    (product,) = [e for e in equations.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert equations.jaxpr.invars[0] in product.invars


def test_pooling_drops_what_is_left_over() -> None:
    x = np.arange(2 * 5 * 7 * 1, dtype=np.float32).reshape(2, 5, 7, 1)
    np.testing.assert_array_equal(pooled(x, 2)[0, :, :, 0], [[8, 10, 12], [22, 24, 26]])


def test_flat_rows_are_read_as_the_image_says() -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 4, 3)).astype(np.float32)
    words: dict[str, Any] = {"channels": (2,), "kernel": 3, "hidden": (5,), "norm": "batch"}
    deep, flat = built("float32[6, 4, 3]", **words), built("float32[72]", image=(6, 4, 3), **words)
    both = [
        m.apply(deep.params, deep.state, (i,), train=True, key=None) for m, i in ((deep, x), (flat, x.reshape(2, 72)))
    ]
    np.testing.assert_array_equal(both[0][0], both[1][0])
    assert jax.tree.leaves(both[0][1])


@pytest.mark.parametrize(
    ("shape", "words", "told"),
    [
        ("float32[6, 6, 1]", {"channels": (2, 2), "kernel": 3}, "behind block conv/1"),
        ("float32[6, 6, 1]", {"channels": (2, 2), "kernel": 3}, "kernel 3, stride 1 and padding 0 leave 0 x 0"),
        ("float32[4, 4, 1]", {"channels": (2,)}, "behind block conv/0"),
        ("float32[64]", {"channels": (2,)}, "conv takes one image"),
        ("float32[64]", {"channels": (2,), "image": (8, 4, 1)}, r"image = \[8, 4, 1\] has 32 numbers"),
        ("float32[8, 8, 1]", {"channels": ()}, "channels"),
        ("float32[8, 8, 1]", {"channels": (2,), "stride": 0}, "stride"),
        ("float32[8, 8, 1]", {"channels": (2,), "padding": -1}, "padding"),
    ],
)
def test_what_does_not_fit_is_refused(shape: str, words: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        built(shape, **words)
