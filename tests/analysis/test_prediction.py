"""From outputs to probabilities and decisions, eagerly and as a stream."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.special import softmax as scipy_softmax

from nitro_cli.analysis import (
    PredictionOrigin,
    PredictionStream,
    Probabilities,
    array_identity,
    concatenate,
    data_identity,
    model_id,
)
from nitro_cli.errors import ConfigError, DataError, NonFiniteOutputError, StreamClosedError


def test_probabilities_are_scipys_and_do_not_overflow():
    logits = np.array([[1000.0, 0.0, -1000.0], [1.0, 2.0, 3.0]])
    found = Probabilities("categorical").predict(logits)
    np.testing.assert_allclose(found.probabilities, scipy_softmax(logits, axis=1), rtol=1e-14)
    labels = Probabilities("bernoulli").predict(logits)
    np.testing.assert_allclose(labels.probabilities, expit(logits), rtol=1e-14)
    np.testing.assert_array_equal(labels.decoded, [[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("dtype", "given", "tolerance"),
    [
        ("float16", "float16", 1e-3),
        (ml_dtypes.bfloat16, "float32", 1e-6),
        ("float32", "float32", 1e-6),
        ("i4", "f8", 0),
    ],
)
def test_probabilities_have_the_dtype_of_the_logits(dtype, given, tolerance):
    logits = np.array([[3, 1], [-2, 9]]).astype(dtype)
    found = Probabilities("categorical").predict(logits)
    assert found.probabilities.dtype == np.dtype(given)
    np.testing.assert_allclose(found.probabilities, scipy_softmax(logits.astype(float), axis=1), atol=tolerance + 1e-15)


def test_float16_is_computed_in_float32():
    logits = np.linspace(0, 8, 4096, dtype=np.float16)[None]
    found = Probabilities("categorical").predict(logits).probabilities
    wanted = scipy_softmax(logits.astype(np.float32), axis=1).astype(np.float16)
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 20),
    size=st.integers(1, 7),
    kind=st.sampled_from(["categorical", "bernoulli", "continuous"]),
    dtype=st.sampled_from(["f2", "f4", "f8"]),
    seed=st.integers(0, 1000),
)
def test_batches_joined_are_the_whole_bit_for_bit(rows, size, kind, dtype, seed):
    logits = np.random.default_rng(seed).normal(size=(rows, 5)).astype(dtype)
    spec, target = Probabilities(kind), np.zeros((rows, 5))
    target = np.arange(rows) % 5 if kind == "categorical" else target
    whole = spec.predict(logits, target=target, fields={"age": np.arange(rows)})
    parts = (
        spec.predict(logits[a : a + size], ids=np.arange(a, min(a + size, rows)), target=target[a : a + size],
                     fields={"age": np.arange(a, min(a + size, rows))})
        for a in range(0, rows, size)
    )  # fmt: skip
    joined = concatenate(PredictionStream(parts))
    for name in ("outputs", "probabilities", "decoded", "ids", "target"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    np.testing.assert_array_equal(joined.fields["age"], whole.fields["age"])


def test_an_output_that_is_not_finite_is_named_by_its_row():
    logits = np.zeros((4, 3))
    logits[2, 1] = np.inf
    with pytest.raises(NonFiniteOutputError, match="row 2 is inf"):
        Probabilities("categorical").predict(logits)
    with pytest.raises(NonFiniteOutputError, match="row 1 is nan"):
        Probabilities("continuous").predict(np.array([0.0, np.nan]))


def test_the_first_of_equal_classes_is_decided_and_its_name_told():
    found = Probabilities("categorical", labels=("a", "b", "c")).predict(np.array([[0.0, 1.0, 1.0]]))
    np.testing.assert_array_equal(found.class_indices, [1])
    np.testing.assert_array_equal(found.decoded_labels, ["b"])
    for kind in ("bernoulli", "continuous"):
        other = Probabilities(kind).predict(np.zeros((1, 3)))
        with pytest.raises(DataError, match=f"{kind} prediction decides on no class"):
            _ = other.class_indices
        with pytest.raises(DataError, match="no class"):
            _ = other.decoded_labels
    with pytest.raises(DataError, match="no names"):
        _ = Probabilities("categorical").predict(np.zeros((1, 3))).decoded_labels


def test_a_class_axis_in_front_is_read_and_the_samples_are_never_it():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    found = Probabilities("categorical", class_axis=1).predict(logits)
    np.testing.assert_allclose(found.probabilities, scipy_softmax(logits, axis=1))
    assert found.decoded.shape == (2, 4, 4)
    assert found.classes == 3
    for axis in (0, -4, 4):
        with pytest.raises((ConfigError, DataError), match=r"class_axis|class axis"):
            Probabilities("categorical", class_axis=axis).predict(logits)


@pytest.mark.parametrize("labels", [("a", "a"), ("a", ""), ("a", 3)])
def test_labels_that_do_not_name_each_class_once_are_refused(labels):
    with pytest.raises(ConfigError, match="each class once"):
        Probabilities("categorical", labels=labels)


def test_what_does_not_fit_is_refused():
    spec = Probabilities("categorical")
    with pytest.raises(ConfigError, match="no kind"):
        Probabilities("categoric")
    with pytest.raises(DataError, match="2 labels name 3 classes"):
        Probabilities("categorical", labels=("a", "b")).predict(np.zeros((1, 3)))
    with pytest.raises(DataError, match="no axis of classes"):
        spec.predict(np.zeros(3))
    with pytest.raises(DataError, match="fewer than two"):
        spec.predict(np.zeros((3, 1)))
    with pytest.raises(DataError, match="complex"):
        spec.predict(np.zeros((3, 2), complex))
    with pytest.raises(DataError, match="ids has the shape"):
        spec.predict(np.zeros((3, 2)), ids=[1, 2])
    with pytest.raises(DataError, match="the ids are float64"):
        spec.predict(np.zeros((2, 2)), ids=[1.5, 2])
    with pytest.raises(DataError, match="no target"):
        _ = spec.predict(np.zeros((2, 2))).entries
    with pytest.raises(DataError, match="the target is float64"):
        _ = spec.predict(np.zeros((2, 2)), target=[0.0, 1.0]).entries
    with pytest.raises(DataError, match="0 to 1"):
        _ = Probabilities("bernoulli").predict(np.zeros((2, 2)), target=[[0, 1], [2, 0]]).entries


def test_predictions_of_other_models_are_not_joined():
    one = Probabilities("categorical").predict(np.zeros((1, 2)), origin=PredictionOrigin(model_id="sha256:1"))
    for other in (
        replace(one, origin=PredictionOrigin()),
        replace(one, labels=("a", "b")),
        replace(one, target=np.zeros(1, int)),
    ):
        with pytest.raises(DataError, match="cannot be joined"):
            concatenate([one, other])
    with pytest.raises(DataError, match="no predictions"):
        concatenate([])


def test_a_stream_that_is_consumed_or_closed_says_so_and_its_source_stays_usable():
    made = [Probabilities("categorical").predict(np.zeros((1, 2))) for _ in range(3)]
    asked = []

    def source():
        try:
            for item in made:
                asked.append(item)
                yield item
        finally:
            asked.append("closed")

    stream = PredictionStream(source())
    assert list(stream) == made
    with pytest.raises(StreamClosedError):
        next(stream)
    with pytest.raises(StreamClosedError):
        list(stream)
    asked.clear()
    with PredictionStream(source()) as stream:
        assert next(stream) is made[0]
        assert len(asked) == 1  # nothing is made ahead
        stream.close()
        stream.close()
        assert asked[-1] == "closed"
        with pytest.raises(StreamClosedError, match="closed or consumed"):
            next(stream)
    with PredictionStream(made) as stream:
        assert next(stream) is made[0]
    assert list(PredictionStream(made)) == made
    assert list(PredictionStream([])) == []


def test_the_id_of_a_model_follows_its_bytes_paths_shapes_and_dtypes():
    weights = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}
    known = model_id(weights.items())
    assert known.startswith("sha256:")
    assert len(known) == 71
    assert model_id(reversed(weights.items())) == known
    assert model_id({**weights, "a": weights["a"].astype(">f4")}.items()) == known
    for changed in (
        {**weights, "a": weights["a"] + 1},
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].astype(np.float64)},
        {"c": weights["a"], "b": weights["b"]},
        {"a": weights["a"]},
    ):
        assert model_id(changed.items()) != known
    assert array_identity(weights["a"]) != array_identity(weights["a"].T)
    assert data_identity({"x": weights["a"], "y": weights["b"]}) == data_identity(
        {"y": weights["b"], "x": weights["a"]}
    )


def test_a_large_array_is_digested_in_parts_as_if_whole():
    import hashlib

    from nitro_cli.text.canonical import canonical

    array = np.arange(5_000_000, dtype=np.int64)
    wanted = hashlib.sha256(canonical(["w", "int64", [5_000_000]]) + b"\n" + array.astype("<i8").tobytes()).hexdigest()
    assert model_id([("w", array)]) == f"sha256:{wanted}"
