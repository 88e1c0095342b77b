"""Metric values of batches combined into those of a split; expected numbers from numpy and exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import MetricError, NitroWarning
from nitro_cli.metrics import Concat, Max, Mean, Min, SplitAccumulator, Sum


def combined(batches, **keywords):
    acc = SplitAccumulator(split="val", **keywords)
    for i, batch in enumerate(batches):
        acc.add(batch, batch=i)
    return acc.result()


def test_mean_divides_the_summed_totals_by_the_summed_counts_once():
    # Means of 1.0 (4 samples) and 0.0 (1 sample): 0.8 over the split, not the 0.5 of a mean of means.
    assert combined([{"acc": Mean(4, 4)}, {"acc": Mean(0, 1)}]) == {"acc": 0.8}


@given(st.lists(st.tuples(st.integers(-(10**6), 10**6), st.integers(1, 10**4)), min_size=1, max_size=20))
def test_mean_of_integers_is_the_correctly_rounded_quotient(pairs):
    value = combined([{"m": Mean(t, c)} for t, c in pairs])["m"]
    assert value == float(Fraction(sum(t for t, _ in pairs), sum(c for _, c in pairs)))


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3), min_size=1, max_size=8))
def test_integer_arrays_are_summed_exactly_and_stay_integers(rows):
    value = combined([{"n": Sum(np.asarray(r))} for r in rows])["n"]
    assert value.dtype == np.int64
    assert value.tolist() == [sum(column) for column in zip(*rows, strict=True)]


def test_integer_scalars_are_summed_beyond_64_bits():
    assert combined([{"n": Sum(2**62)}] * 4) == {"n": 2**64}


def test_small_integer_dtypes_do_not_wrap_around():
    value = combined([{"n": Sum(np.full(2, 200, np.uint8))}] * 2)["n"]
    assert value.tolist() == [400, 400]


def test_integer_arrays_beyond_64_bits_are_refused_instead_of_wrapping():
    acc = SplitAccumulator(split="val")
    acc.add({"n": Sum(np.asarray([2**62]))})
    with pytest.raises(MetricError, match="64 bits"):
        acc.add({"n": Sum(np.asarray([2**62]))})


def test_boolean_counts_are_counted():
    assert combined([{"n": Sum(np.bool_(True))}, {"n": Sum(True)}]) == {"n": 2}


def test_float32_values_are_summed_in_float64():
    value = combined([{"s": Sum(np.float32(2**24))}, {"s": Sum(np.float32(1))}, {"s": Sum(np.float32(1))}])["s"]
    assert value == 2**24 + 2  # float32 cannot hold 2**24 + 1
    assert type(value) is float


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_max_and_min_are_those_of_all_batches(values):
    result = combined([{"hi": Max(v), "lo": Min(np.asarray([v]))} for v in values])
    assert result["hi"] == max(values)
    assert result["lo"].tolist() == [min(values)]


def test_a_nan_is_not_hidden_by_max_or_min():
    result = combined([{"hi": Max(1.0), "lo": Min(math.nan)}, {"hi": Max(math.nan), "lo": Min(1.0)}])
    assert math.isnan(result["hi"])
    assert math.isnan(result["lo"])


def test_concat_joins_on_the_first_axis_and_keeps_the_dtype():
    parts = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 2), np.float32)]
    value = combined([{"p": Concat(p)} for p in parts])["p"]
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, np.concatenate(parts))


def test_concat_takes_text():
    assert combined([{"s": Concat(["a"])}, {"s": Concat(["bcd", "e"])}])["s"].tolist() == ["a", "bcd", "e"]


def test_concat_is_not_changed_by_a_reused_buffer():
    acc, buffer = SplitAccumulator(), np.zeros(2)
    acc.add({"p": Concat(buffer), "s": Sum(buffer)})
    buffer[:] = 7
    acc.add({"p": Concat(buffer), "s": Sum(buffer)})
    assert acc.result()["p"].tolist() == [0, 0, 7, 7]
    assert acc.result()["s"].tolist() == [7, 7]


def test_a_mode_covers_every_leaf_of_a_nested_mapping():
    batches = [
        {"g": Sum({"a": 1, "deep": {"b": np.ones(2)}}), "m": Mean({"x": 3, "y": 1}, 4)},
        {"g": Sum({"a": 2, "deep": {"b": np.ones(2)}}), "m": Mean({"x": 1, "y": 1}, 4)},
    ]
    result = combined(batches)
    assert result["g"]["a"] == 3
    assert result["g"]["deep"]["b"].tolist() == [2, 2]
    assert result["m"] == {"x": 0.5, "y": 0.25}


def test_values_may_be_nested_with_a_mode_each():
    batch = {"ranking": {"score": Concat(np.asarray([0.5])), "positives": Sum(1)}}
    result = combined([batch, batch])
    assert result["ranking"]["positives"] == 2
    assert result["ranking"]["score"].tolist() == [0.5, 0.5]


def test_counts_per_entry_divide_entry_by_entry():
    batch = {"recall": Mean(np.asarray([1, 3]), np.asarray([2, 4]))}
    assert combined([batch, batch])["recall"].tolist() == [0.5, 0.75]


def test_counts_of_a_mapping_belong_to_their_totals():
    assert combined([{"m": Mean({"a": 1, "b": 1}, {"a": 2, "b": 4})}]) == {"m": {"a": 0.5, "b": 0.25}}
    with pytest.raises(MetricError, match="'c'"):
        combined([{"m": Mean({"a": 1, "b": 1}, {"a": 2, "c": 4})}])


def test_jax_arrays_are_taken_scalars_and_bfloat16_included():
    jnp = pytest.importorskip("jax.numpy")
    result = combined(
        [{"m": Mean(jnp.float32(1.5), 2), "b": Sum(jnp.asarray([1.5], jnp.bfloat16)), "n": Sum(jnp.int32(3))}]
    )
    assert result["m"] == 0.75
    assert result["b"].dtype == np.float64
    assert result["b"].tolist() == [1.5]
    assert result["n"] == 3
    assert type(result["n"]) is int


def test_values_can_be_taken_apart_and_rebuilt_for_a_trace():
    jax = pytest.importorskip("jax")
    from nitro_cli.metrics import MODES

    for value in (Mean({"a": 1}, 2), Sum(3), Max(4), Min(5), Concat([6])):
        children, aux = value.tree_children()
        again = type(value).from_children(aux, children)
        assert type(again) in MODES
        assert repr(again) == repr(value)
    assert jax.tree_util.tree_leaves(Mean(1, 2).tree_children()[0]) == [1, 2]


def test_a_bare_number_is_refused_asking_for_its_denominator():
    with pytest.raises(MetricError) as err:
        combined([{"acc": 0.9}])
    text = str(err.value)
    assert "'acc'" in text
    assert "denominator" in text
    assert "Mean(total, count)" in text
    assert "split 'val'" in text
    assert "batch 0" in text


def test_a_bare_leaf_inside_a_group_is_refused_by_its_path():
    with pytest.raises(MetricError, match="'ranking/score'"):
        combined([{"ranking": {"score": np.ones(3)}}])


def test_mean_without_a_count_asks_for_it():
    with pytest.raises(MetricError, match="denominator"):
        Mean(0.9)


def test_a_leaf_under_two_modes_is_refused():
    with pytest.raises(MetricError, match="two modes: Mean inside Sum"):
        combined([{"g": Sum({"a": Mean(1, 2)})}])


@pytest.mark.parametrize("returned", [None, 0.5, [("acc", Mean(1, 1))]])
def test_a_return_value_that_is_no_mapping_is_refused(returned):
    with pytest.raises(MetricError, match="not a mapping"):
        combined([returned])


def test_names_that_change_between_batches_are_refused_naming_them():
    acc = SplitAccumulator(split="val")
    acc.add({"a": Sum(1), "b": Sum(1)}, batch=0)
    with pytest.raises(MetricError) as err:
        acc.add({"a": Sum(1), "c": Sum(1)}, batch=7)
    text = str(err.value)
    assert "'b'" in text
    assert "'c'" in text
    assert "batch 7" in text
    assert "split 'val'" in text


def test_a_new_name_in_a_later_batch_is_refused():
    acc = SplitAccumulator()
    acc.add({"a": Sum(1)})
    with pytest.raises(MetricError, match="with the new 'b'"):
        acc.add({"a": Sum(1), "b": Sum(1)})


def test_shapes_that_change_between_batches_are_refused_naming_both():
    acc = SplitAccumulator(split="val")
    acc.add({"a": Sum(np.ones(3))}, batch=0)
    with pytest.raises(MetricError) as err:
        acc.add({"a": Sum(np.ones(2))}, batch=1)
    assert "(2,)" in str(err.value)
    assert "(3,)" in str(err.value)
    assert "batch 1" in str(err.value)


def test_modes_that_change_between_batches_are_refused():
    acc = SplitAccumulator()
    acc.add({"a": Sum(1)})
    with pytest.raises(MetricError, match="Max here and was Sum"):
        acc.add({"a": Max(1)})


def test_a_refused_batch_leaves_the_accumulator_as_it_was():
    acc = SplitAccumulator()
    acc.add({"a": Sum(1), "b": Sum(1)})
    with pytest.raises(MetricError):
        acc.add({"a": Sum(5), "b": Sum("x")})
    acc.add({"a": Sum(1), "b": Sum(1)})
    assert acc.result() == {"a": 2, "b": 2}
    assert len(acc) == 2


def test_concat_of_a_single_value_is_refused():
    with pytest.raises(MetricError, match="one entry per sample"):
        combined([{"p": Concat(3.0)}])


def test_concat_with_another_length_than_the_batch_is_refused():
    with pytest.raises(MetricError, match=r"2 entries.*5 samples"):
        SplitAccumulator().add({"p": Concat(np.ones((2, 5)))}, samples=5)


def test_concat_of_text_and_numbers_is_refused_instead_of_converted():
    acc = SplitAccumulator()
    acc.add({"p": Concat([1.0])})
    with pytest.raises(MetricError, match="dtype"):
        acc.add({"p": Concat(["a"])})


def test_a_count_that_is_zero_over_the_split_is_refused():
    with pytest.raises(MetricError, match="zero over the whole split") as err:
        combined([{"acc": Mean(0, 0)}, {"acc": Mean(0, 0)}])
    assert "'acc'" in str(err.value)
    assert "split 'val'" in str(err.value)


def test_a_batch_may_have_a_zero_count():
    assert combined([{"acc": Mean(0, 0)}, {"acc": Mean(1, 2)}]) == {"acc": 0.5}


def test_a_class_without_samples_is_nan_with_a_warning():
    with pytest.warns(NitroWarning, match="1 of 2 counts of 'recall'"):
        value = combined([{"recall": Mean(np.asarray([1, 0]), np.asarray([2, 0]))}])["recall"]
    assert value[0] == 0.5
    assert math.isnan(value[1])


@pytest.mark.parametrize("count", [-1, math.nan, math.inf])
def test_a_count_that_is_no_count_is_refused(count):
    with pytest.raises(MetricError, match="count of 'acc'"):
        combined([{"acc": Mean(1, count)}])


def test_a_count_of_another_shape_than_its_total_is_refused():
    with pytest.raises(MetricError, match="shape"):
        combined([{"acc": Mean(1, np.ones(3))}])


@pytest.mark.parametrize("value", ["x", None, 1j, object()])
def test_a_value_that_is_no_real_number_is_refused(value):
    with pytest.raises(MetricError, match="not a real number"):
        combined([{"a": Sum(value)}])


def test_no_batch_at_all_is_refused():
    with pytest.raises(MetricError, match="No batch"):
        SplitAccumulator(split="val").result()


def test_results_are_not_views_of_what_is_accumulated():
    acc = SplitAccumulator()
    acc.add({"s": Sum(np.ones(2))})
    acc.result()["s"][:] = 9
    assert acc.result()["s"].tolist() == [1, 1]
