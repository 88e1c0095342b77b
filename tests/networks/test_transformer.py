"""The transformer computes what Llama computes, whole and token by token, and never looks ahead or over a border."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Declared
from nitro_cli.networks import Transformer
from nitro_cli.programs import adapt_returned
from tests.networks.golden_cases import Case, golden, tree

CASES = golden("llama")
VOCAB = 61


def network(kv_heads: int | None = None, **words: Any) -> Transformer:
    sizes: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "max_seq_len": 256, "kv_heads": kv_heads}
    return Transformer(**sizes | words, inputs=("tokens",), shapes={"tokens": "int32[17]"}, outputs=VOCAB)


def built(kv_heads: int | None = None, **words: Any) -> tuple[Any, Any]:
    adapted = adapt_returned(network(kv_heads, **words).hooks()["build_model"].function(jax.random.key(0)))
    return adapted, adapted.params


def logits_of(adapted: Any, params: Any, ids: Any, *, train: bool = False, key: Any = None, **words: Any) -> Any:
    return adapted.apply(params, {}, (jnp.asarray(ids),), train=train, key=key, keywords=words)[0]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_values_and_gradients_are_llamas(kv_heads: int) -> None:
    case: Case = CASES[f"kv{kv_heads}"]
    adapted, fresh = built(kv_heads)
    params = tree(case, "params")
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, params)

    def weighed(params: Any) -> Any:
        logits = logits_of(adapted, params, case["ids"])
        return (logits * case["weights"]).sum(), logits

    (_, logits), gradient = jax.value_and_grad(weighed, has_aux=True)(params)
    np.testing.assert_allclose(logits, case["logits"], rtol=1e-4, atol=1e-5 * np.abs(case["logits"]).max())
    expected = tree(case, "gradient/params")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max()), gradient, expected)


def test_twenty_steps_of_adamw_lose_what_pytorchs_lose() -> None:
    case = CASES["kv2"]
    adapted, _ = built(2)
    params = tree(case, "params")
    optimizer = optax.adamw(float(case["rate"]), weight_decay=float(case["decay"]))

    def loss_of(params: Any) -> Any:
        logits = logits_of(adapted, params, case["ids"])[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, case["ids"][:, 1:]).mean()

    @jax.jit
    def step(params: Any, opt: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    opt, losses = optimizer.init(params), []
    for _ in case["losses"]:
        params, opt, loss = step(params, opt)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, case["losses"], rtol=1e-4)


@pytest.mark.parametrize("words", [{}, {"tie_embeddings": False}, {"remat": True}])
def test_later_tokens_change_no_earlier_logits(words: dict[str, Any]) -> None:
    adapted, params = built(2, **words)
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 12)).astype(np.int32)
    changed = ids.copy()
    changed[:, 8:] = (changed[:, 8:] + 7) % VOCAB
    before, after = logits_of(adapted, params, ids), logits_of(adapted, params, changed)
    np.testing.assert_array_equal(before[:, :8], after[:, :8])
    assert np.abs(before[:, 8:] - after[:, 8:]).max() > 1e-3


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_token_by_token_over_a_cache_equals_the_full_pass_of_rows_of_unlike_lengths_too(kv_heads: int) -> None:
    adapted, _ = built(kv_heads)
    model, params = adapted.module, tree(CASES[f"kv{kv_heads}"], "params")
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, VOCAB, n).astype(np.int32) for n in (11, 4, 7)]
    lengths = np.array([5, 1, 3], np.int32)
    prompt = np.zeros((3, 8), np.int32)
    for row, ids in enumerate(rows):
        prompt[row, : lengths[row]] = ids[: lengths[row]]
    decode = jax.jit(model.decode)
    logits, cache = decode(params, model.init_cache(3, 16), prompt, lengths)
    whole = [np.asarray(logits_of(adapted, params, ids[None]))[0] for ids in rows]
    scale = max(np.abs(w).max() for w in whole)
    for step in range(3):
        for row, ids in enumerate(rows):
            at = lengths[row] + step
            if at <= len(ids):
                np.testing.assert_allclose(logits[row, 0], whole[row][at - 1], atol=1e-5 * scale)
        following = [ids[min(lengths[row] + step, len(ids) - 1)] for row, ids in enumerate(rows)]
        logits, cache = decode(params, cache, np.array(following, np.int32)[:, None])
    np.testing.assert_array_equal(cache["length"], lengths + 3)


def test_a_segment_sees_itself_alone() -> None:
    adapted, params = built(2)
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, VOCAB, (1, n)).astype(np.int32) for n in (5, 7))
    ids = np.concatenate([one, two], axis=1)
    segment = np.repeat([[0, 1]], [5, 7], axis=1).astype(np.int32)
    position = np.concatenate([np.arange(5), np.arange(7)])[None].astype(np.int32)
    packed = logits_of(adapted, params, ids, segment=segment, position=position)
    np.testing.assert_allclose(packed[:, :5], logits_of(adapted, params, one), atol=1e-5)
    np.testing.assert_allclose(packed[:, 5:], logits_of(adapted, params, two), atol=1e-5)


def test_rates_draw_masks_in_training_alone_and_unset_draw_none() -> None:
    adapted, params = built(2)
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 9)).astype(np.int32)
    plain = logits_of(adapted, params, ids)
    for name in ("attention_dropout", "residual_dropout"):
        words = {"train": True, "key": jax.random.key(0), name: 0.3}
        assert np.abs(logits_of(adapted, params, ids, **words) - plain).max() > 1e-3
        np.testing.assert_array_equal(logits_of(adapted, params, ids, **{name: 0.3}), plain)
        nothing = logits_of(adapted, params, ids, **words | {name: 0.0})
        np.testing.assert_allclose(nothing, plain, atol=1e-5)
    drawn = str(jax.make_jaxpr(lambda p: logits_of(adapted, p, ids, train=True, key=jax.random.key(0)))(params))
    assert "random_bits" not in drawn


def test_blocks_are_marked_and_logits_are_float32_in_half_precision() -> None:
    adapted, params = built(2)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    ids = np.zeros((1, 4), np.int32)
    assert logits_of(adapted, half, ids).dtype == jnp.float32
    equations = jax.make_jaxpr(lambda p: logits_of(adapted, p, ids))(params).eqns
    assert [e.params["name"] for e in equations if e.primitive.name == "name"] == ["blocks/0", "blocks/1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"heads": 5}, "heads = 5 does not divide width = 32"),
        ({"heads": 32}, "a head is 1 wide"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"depth": 0}, "depth"),
        ({"width": 32.0}, "width"),
        ({"max_seq_len": True}, "max_seq_len"),
        ({"residual_dropout": 1.0}, "residual_dropout"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        network(**words)


def test_rows_that_are_too_long_are_refused_while_tracing_and_by_what_the_data_says() -> None:
    adapted, params = built(max_seq_len=8)
    with pytest.raises(ConfigError, match="a row of 9 tokens is longer than max_seq_len = 8"):
        logits_of(adapted, params, np.zeros((1, 9), np.int32))
    with pytest.raises(ConfigError, match="rows of 9 tokens are longer than max_seq_len = 8"):
        network(max_seq_len=8).fills({}, {}, Declared(length=9))
    with pytest.raises(ConfigError, match="do not fit into a cache of 4"):
        adapted.module.decode(params, adapted.module.init_cache(1, 4), np.zeros((1, 5), np.int32))
