"""Loss terms of the tasks: against optax and NumPy, on what counts alone, in any micro-batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli.errors import ConfigError
from nitro_cli.tasks import Categorical, Multilabel, Regression

RNG = np.random.default_rng(0)
ROWS, CLASSES = 12, 4
LOGITS = (RNG.normal(size=(ROWS, CLASSES)) * 3).astype(np.float32)
IDS = RNG.integers(0, CLASSES, ROWS)
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0], np.float32)
MASK = RNG.random(ROWS) < 0.6


def loss(task, outputs, target, **words):
    (term,) = task.terms(jnp.asarray(outputs), jnp.asarray(target), **words).values()
    return term.numerator / term.denominator


def test_cross_entropy_is_the_number_by_hand():
    task = Categorical(3, class_weights=[1, 2, 0.5], label_smoothing=0.1)
    term = task.terms(jnp.array([[1.0, 2, 0], [0, 0, 0], [3, -1, 1]]), jnp.array([1, 2, 0]))["cross_entropy"]
    assert float(term.numerator) == pytest.approx(1.9157722177, rel=1e-6)
    assert float(term.denominator) == 3.5
    assert float(term.numerator / term.denominator) == pytest.approx(0.5473634908, rel=1e-6)


def by_hand(logits, ids, weights, smoothing):
    """PyTorch's cross-entropy by its documentation, in float64, entry by entry."""
    logits = logits.astype(np.float64)
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    each = [
        (1 - smoothing) * weights[y] * -row[y] + smoothing / len(row) * (weights * -row).sum()
        for row, y in zip(log_p, ids, strict=True)
    ]
    return sum(each) / weights[ids].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_masked_rows_is_that_of_the_others_and_so_is_its_gradient(smoothing):
    task = Categorical(class_weights=WEIGHTS, label_smoothing=smoothing, ignore_index=-100)
    wanted = by_hand(LOGITS[MASK], IDS[MASK], WEIGHTS, smoothing)
    ignored = np.where(MASK, IDS, -100)
    assert float(loss(task, LOGITS, IDS, mask=jnp.asarray(MASK))) == pytest.approx(wanted, rel=1e-6)
    assert float(loss(task, LOGITS, IDS, valid=jnp.asarray(MASK))) == pytest.approx(wanted, rel=1e-6)
    assert float(loss(task, LOGITS, ignored)) == pytest.approx(wanted, rel=1e-6)

    def alone(logits):
        hot = jax.nn.one_hot(IDS[MASK], CLASSES)
        soft = optax.smooth_labels(hot, smoothing) * WEIGHTS
        return -(soft * jax.nn.log_softmax(logits)).sum() / WEIGHTS[IDS[MASK]].sum()

    poisoned = np.where(MASK[:, None], LOGITS, np.nan)
    found = jax.grad(lambda z: loss(task, z, ignored))(poisoned)
    np.testing.assert_allclose(found[MASK], jax.grad(alone)(LOGITS[MASK]), rtol=2e-6, atol=1e-8)
    assert not np.asarray(found[~MASK]).any()


def test_a_distribution_weighs_as_its_classes_do():
    shares = np.random.default_rng(1).dirichlet(np.ones(CLASSES), ROWS).astype(np.float32)
    task = Categorical(class_weights=WEIGHTS)
    each = optax.softmax_cross_entropy(LOGITS, shares * WEIGHTS)
    assert float(loss(task, LOGITS, shares)) == pytest.approx(float(each.sum() / (shares * WEIGHTS).sum()), rel=1e-6)
    hot = np.eye(CLASSES, dtype=np.float32)[IDS]
    assert float(loss(task, LOGITS, hot)) == pytest.approx(float(loss(task, LOGITS, IDS)), rel=1e-7)


def test_classes_may_lie_on_any_axis_and_positions_are_entries():
    images = np.random.default_rng(2).normal(size=(2, CLASSES, 3, 5)).astype(np.float32)
    ids = np.random.default_rng(3).integers(0, CLASSES, (2, 3, 5))
    wanted = by_hand(np.moveaxis(images, 1, -1).reshape(-1, CLASSES), ids.reshape(-1), np.ones(CLASSES), 0.0)
    task = Categorical(class_axis=1)
    assert float(loss(task, images, ids)) == pytest.approx(wanted, rel=1e-6)
    assert task.decode(jnp.asarray(images)).shape == task.probabilities(jnp.asarray(images)).sum(1).shape == (2, 3, 5)
    np.testing.assert_allclose(task.probabilities(jnp.asarray(images)).sum(1), 1, rtol=1e-6)


def test_a_class_that_is_masked_by_minus_infinity_and_has_no_weight_costs_nothing():
    logits = np.array([[1.0, -np.inf, 0.0]], np.float32)
    value, slope = jax.value_and_grad(lambda z: loss(Categorical(), z, np.array([0])))(logits)
    assert float(value) == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    assert np.isfinite(slope).all()


def test_half_precision_is_computed_in_float32():
    value = loss(Categorical(), LOGITS.astype(jnp.bfloat16), IDS)
    assert value.dtype == jnp.float32


def test_a_sample_weight_weighs_numerator_and_denominator():
    weight = np.random.default_rng(4).random(ROWS).astype(np.float32)
    each = optax.softmax_cross_entropy_with_integer_labels(LOGITS, IDS)
    wanted = float((each * weight).sum() / weight.sum())
    assert float(loss(Categorical(), LOGITS, IDS, weight=jnp.asarray(weight))) == pytest.approx(wanted, rel=1e-6)
    values = LOGITS[:, 0]
    wanted = float((weight * values**2).sum() / weight.sum())
    found = loss(Regression(), values, np.zeros(ROWS), weight=jnp.asarray(weight))
    assert float(found) == pytest.approx(wanted, rel=1e-6)


LABELS = np.where(RNG.random((ROWS, 3)) < 0.3, np.nan, RNG.random((ROWS, 3)).round()).astype(np.float32)


def test_binary_cross_entropy_is_optaxs_over_the_labels_that_are_there():
    logits, there = LOGITS[:, :3], ~np.isnan(LABELS)
    wanted = optax.sigmoid_binary_cross_entropy(logits[there], LABELS[there]).mean()
    assert float(loss(Multilabel(3), logits, LABELS)) == pytest.approx(float(wanted), rel=1e-6)
    extreme = np.array([[1000.0, -1000.0]], np.float32)
    assert float(loss(Multilabel(), extreme, np.array([[0.0, 1.0]]))) == 1000.0
    slope = jax.grad(lambda z: loss(Multilabel(), z, LABELS))(logits)
    alone = jax.grad(lambda z: optax.sigmoid_binary_cross_entropy(z, LABELS[there]).mean())(logits[there])
    np.testing.assert_allclose(np.asarray(slope)[there], alone, rtol=1e-5, atol=1e-8)
    assert not np.asarray(slope)[~there].any()


def test_a_label_that_is_there_weighs_as_pytorchs_pos_weight_says():
    logits, target, more = LOGITS[:, :3], np.nan_to_num(LABELS), np.array([2.0, 0.5, 3.0], np.float32)
    log_p, log_q = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    wanted = -(more * target * log_p + (1 - target) * log_q).mean()
    assert float(loss(Multilabel(pos_weight=more), logits, target)) == pytest.approx(float(wanted), rel=1e-5)


def test_one_label_needs_no_axis_of_its_own():
    logits, target = LOGITS[:, 0], LABELS[:, 0]
    wanted = float(loss(Multilabel(1), logits[:, None], target[:, None]))
    for z, y in ((logits, target), (logits[:, None], target), (logits, target[:, None])):
        assert float(loss(Multilabel(1), z, y)) == wanted


@pytest.mark.parametrize(
    ("words", "name", "each"),
    [
        ({}, "squared_error", lambda r: r**2),
        ({"loss": "absolute"}, "absolute_error", np.abs),
        ({"loss": "huber", "delta": 0.7}, "huber", lambda r: np.asarray(optax.huber_loss(r, delta=0.7))),
    ],
)
def test_errors_of_values_are_the_means_over_the_targets_that_are_there(words, name, each):
    values, there = LOGITS[:, :3], ~np.isnan(LABELS)
    term = Regression(**words).terms(jnp.asarray(values), jnp.asarray(LABELS))[name]
    assert float(term.denominator) == there.sum()
    wanted = each((values - LABELS)[there]).mean()
    assert float(term.numerator / term.denominator) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize("task", [Categorical(class_weights=WEIGHTS, label_smoothing=0.1), Categorical()])
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_terms_of_micro_batches_add_up_to_that_of_the_batch(task, parts):
    whole = loss(task, LOGITS, IDS, mask=jnp.asarray(MASK))
    cut = [
        task.terms(jnp.asarray(z), jnp.asarray(y), mask=jnp.asarray(m))["cross_entropy"]
        for z, y, m in zip(*(np.split(x, parts) for x in (LOGITS, IDS, MASK)), strict=True)
    ]
    found = sum(float(t.numerator) for t in cut) / sum(float(t.denominator) for t in cut)
    assert found == pytest.approx(float(whole), rel=1e-6)


def test_all_masked_is_nothing_over_nothing():
    term = Categorical().terms(jnp.full((2, 3), jnp.nan), jnp.array([0, 1]), mask=jnp.zeros(2, bool))["cross_entropy"]
    assert (float(term.numerator), float(term.denominator)) == (0.0, 0.0)


def test_a_denominator_does_not_depend_on_what_the_model_gives():
    def denominator(z):
        (term,) = Categorical().terms(z @ z.T @ z, jnp.asarray(IDS), mask=jnp.asarray(MASK)).values()
        return term.denominator

    jaxpr = jax.make_jaxpr(denominator)(LOGITS)
    kept, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr.jaxpr, [True])
    assert "dot_general" in str(jaxpr)
    assert "dot_general" not in str(kept)


def test_the_output_is_named_where_there_are_several():
    outputs = {"head": {"logits": jnp.asarray(LOGITS)}, "other": jnp.zeros(ROWS)}
    wanted = float(loss(Categorical(), LOGITS, IDS))
    assert float(Categorical(output="head/logits").terms(outputs, jnp.asarray(IDS))["cross_entropy"][0]) == (
        pytest.approx(wanted * ROWS, rel=1e-6)
    )
    only = {"logits": jnp.asarray(LOGITS)}
    assert Categorical().terms(only, jnp.asarray(IDS))["cross_entropy"][0] > 0
    with pytest.raises(ConfigError, match="forward returns 2 outputs, and which of them is not said"):
        Categorical().terms(outputs, jnp.asarray(IDS))
    with pytest.raises(ConfigError, match="none of them is 'head/logit'") as error:
        Categorical(output="head/logit").decode(outputs)
    assert error.value.nearest == ("head/logits",)
