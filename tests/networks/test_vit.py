"""The vision transformer against NumPy in float64; patches that are left out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli.errors import ConfigError
from nitro_cli.networks import ViT
from nitro_cli.programs import adapt_returned

SIDE, CHANNELS, PATCH, WIDTH, HEADS = 8, 3, 4, 12, 3
IMAGES = np.random.default_rng(0).normal(size=(5, SIDE, SIDE, CHANNELS)).astype(np.float32)


def built(readout: str = "cls", shape: str = f"float32[{SIDE}, {SIDE}, {CHANNELS}]", **words: Any) -> tuple[Any, Any]:
    sizes: dict[str, Any] = {"patch": PATCH, "width": WIDTH, "depth": 2, "heads": HEADS}
    network = ViT(**sizes | words, readout=readout, inputs=("image",), shapes={"image": shape}, outputs=4)
    adapted = adapt_returned(network.hooks()["build_model"].function(jax.random.key(0)))
    rng = np.random.default_rng(1)
    return adapted, jax.tree.map(lambda leaf: (rng.normal(size=leaf.shape) * 0.4).astype(np.float32), adapted.params)


def outputs_of(adapted: Any, params: Any, images: Any = IMAGES, **words: Any) -> Any:
    return adapted.apply(params, {}, (jnp.asarray(images),), train=False, key=None, keywords=words)[0]


def by_numpy(params: Any, images: np.ndarray) -> np.ndarray:
    """All tokens behind the last norm, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    rows = []
    for image in images.astype(np.float64):
        patches = [
            image[r : r + PATCH, c : c + PATCH].reshape(-1)
            for r in range(0, SIDE, PATCH)
            for c in range(0, SIDE, PATCH)
        ]
        rows.append(np.stack([p["cls"], *[patch @ p["patch"]["kernel"] for patch in patches]]) + p["position"])
    x = np.stack(rows)
    for number in range(2):
        own = p["blocks"][str(number)]
        normed = norm(x, own["attention_norm"]["scale"])
        q, k, v = (
            (normed @ own["attention"][n]["kernel"]).reshape(*x.shape[:2], HEADS, -1) for n in ("query", "key", "value")
        )
        seen = np.empty_like(q)
        for head in range(HEADS):
            scores = q[:, :, head] @ k[:, :, head].transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            seen[:, :, head] = (weights / weights.sum(-1, keepdims=True)) @ v[:, :, head]
        x = x + seen.reshape(x.shape) @ own["attention"]["out"]["kernel"]
        normed = norm(x, own["ffn_norm"]["scale"])
        gate = normed @ own["ffn"]["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ own["ffn"]["up"]["kernel"])) @ own["ffn"]["down"]["kernel"]
    return norm(x, p["norm"]["scale"])


def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


@pytest.mark.parametrize("readout", ["cls", "mean", "tokens"])
def test_it_computes_what_numpy_does_in_float64(readout: str) -> None:
    adapted, params = built(readout)
    tokens = by_numpy(params, IMAGES)
    found = {"cls": tokens[:, 0], "mean": tokens[:, 1:].mean(axis=1)}.get(readout)
    expected = tokens if found is None else found @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(outputs_of(adapted, params), expected, rtol=1e-4, atol=1e-5)


def test_patches_that_are_kept_by_id_and_by_mask_come_out_alike_and_the_others_get_no_gradient() -> None:
    adapted, params = built("tokens")
    ids = np.array([[0, 2], [3, 1], [1, 2], [2, 0], [0, 3]], np.int32)
    mask = np.zeros((5, 4), bool)
    np.put_along_axis(mask, ids, True, axis=1)
    by_id = outputs_of(adapted, params, keep=ids)
    by_mask = outputs_of(adapted, params, keep=mask)
    assert by_id.shape == (5, 3, WIDTH)
    assert by_mask.shape == (5, 5, WIDTH)
    np.testing.assert_allclose(by_id[:, 0], by_mask[:, 0], atol=1e-5)
    picked = np.take_along_axis(np.asarray(by_mask)[:, 1:], ids[..., None], axis=1)
    np.testing.assert_allclose(by_id[:, 1:], picked, atol=1e-5)
    for keep in (ids, mask):
        kept = np.concatenate([np.ones((5, 1), bool), mask], axis=1)[..., None] if keep is mask else 1.0
        gradient = jax.grad(lambda x, keep=keep, kept=kept: (outputs_of(adapted, params, x, keep=keep) * kept).sum())(
            IMAGES
        )
        tiles = (
            np.asarray(gradient).reshape(5, 2, PATCH, 2, PATCH, CHANNELS).transpose(0, 1, 3, 2, 4, 5).reshape(5, 4, -1)
        )
        np.testing.assert_array_equal(np.abs(tiles).sum(-1) > 0, mask)


@pytest.mark.parametrize("readout", ["cls", "mean", "tokens"])
@pytest.mark.parametrize("by_mask", [True, False])
def test_what_a_patch_that_is_left_out_holds_has_no_part_in_outputs_and_gradients(readout: str, by_mask: bool) -> None:
    adapted, params = built(readout)
    keep = np.tile([True, False, True, True], (5, 1)) if by_mask else np.tile(np.array([0, 2, 3], np.int32), (5, 1))
    odd = IMAGES.copy()
    odd[:, :PATCH, PATCH:] = np.nan

    def total(params: Any, images: Any) -> Any:
        return outputs_of(adapted, params, images, keep=keep).sum()

    value, gradient = jax.value_and_grad(total)(params, IMAGES)
    of_odd, gradient_of_odd = jax.value_and_grad(total)(params, odd)
    assert of_odd == pytest.approx(float(value), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient_of_odd, gradient)
    assert not np.asarray(jax.grad(total, argnums=1)(params, IMAGES))[:, :PATCH, PATCH:].any()


def test_the_mean_is_of_what_is_kept() -> None:
    adapted, params = built("mean")
    mask = np.tile([True, False, True, False], (5, 1))
    ids = np.tile(np.array([0, 2], np.int32), (5, 1))
    np.testing.assert_allclose(outputs_of(adapted, params, keep=mask), outputs_of(adapted, params, keep=ids), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "words", "told"),
    [
        ("float32[6, 8, 3]", {}, "patches of 4 pixels do not divide image of 6 x 8"),
        ("float32[64]", {}, "vit takes one image"),
        ("float32[8, 8, 3]", {"heads": 5}, "heads = 5 does not divide width = 12"),
        ("float32[8, 8, 3]", {"patch": 0}, "patch"),
    ],
)
def test_what_does_not_fit_is_refused(shape: str, words: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        built(shape=shape, **words)
