"""What may be reported, and the scalars a run decides by."""

import math

import numpy as np
import pytest

from nitro_cli.errors import MetricError
from nitro_cli.metrics import (
    Concat,
    Mean,
    SplitAccumulator,
    check_reported,
    check_scalar,
    flatten_scalars,
)


def test_reported_values_come_back_flat_as_host_values():
    out = check_reported({"acc": np.float32(0.5), "g": {"n": np.int32(3)}, "cm": [[1, 2], [3, 4]]})
    assert out["acc"] == 0.5
    assert type(out["acc"]) is float
    assert out["g/n"] == 3
    assert type(out["g/n"]) is int
    assert isinstance(out["cm"], np.ndarray)


def test_an_unreduced_concat_is_refused_by_name():
    acc = SplitAccumulator(split="val")
    acc.add({"scores": Concat(np.arange(4.0))})
    result = acc.result()
    for value in (result["scores"], result["scores"][:], result["scores"].reshape(2, 2)):
        with pytest.raises(MetricError, match="unreduced Concat 'scores'"):
            check_reported({"out": value}, concatenated=acc.concatenated, split="val")
    assert check_reported({"best": result["scores"].max()}, concatenated=acc.concatenated) == {"best": 3.0}


def test_a_value_with_its_mode_still_on_is_refused():
    with pytest.raises(MetricError, match="still has its mode: Mean"):
        check_reported({"acc": Mean(1, 2)})


@pytest.mark.parametrize("value", ["high", None, 1j, object(), [1, "a"]])
def test_a_reported_value_that_is_no_number_is_refused(value):
    with pytest.raises(MetricError, match="'acc'"):
        check_reported({"acc": value}, split="val")


@pytest.mark.parametrize("returned", [None, 0.9, ["acc"]])
def test_a_report_that_is_no_mapping_is_refused(returned):
    with pytest.raises(MetricError, match="not a mapping"):
        check_reported(returned)


@pytest.mark.parametrize("name", ["epoch", "step", "train_loss", "context"])
def test_names_of_the_run_records_are_refused(name):
    with pytest.raises(MetricError, match=name):
        check_reported({name: 1.0})


def test_two_metrics_of_one_joined_name_are_refused():
    with pytest.raises(MetricError, match="'a/b'"):
        check_reported({"a/b": 1, "a": {"b": 2}})


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.asarray(3), True])
def test_real_scalars_of_any_library_are_read(value):
    assert check_scalar(value, "monitor 'acc'", {}) == float(value)


def test_jax_scalars_are_read():
    jnp = pytest.importorskip("jax.numpy")
    assert check_scalar(jnp.bfloat16(1.5), "loss", {}) == 1.5
    assert check_scalar(jnp.int32(2), "loss", {}) == 2.0


def test_a_non_finite_scalar_is_given_back():
    assert math.isnan(check_scalar(math.nan, "monitor 'acc'", {}))
    assert check_scalar(-math.inf, "monitor 'acc'", {}) == -math.inf


@pytest.mark.parametrize("value", ["0.9", [0.9], np.asarray([0.9]), 1j, np.complex64(1), {"a": 1}])
def test_a_value_that_is_no_real_scalar_is_refused_naming_the_metrics(value):
    with pytest.raises(MetricError) as err:
        check_scalar(value, "monitor 'acc'", {"acc": value, "loss": 1.0})
    assert "monitor 'acc'" in str(err.value)
    assert "loss" in str(err.value)


def test_scalars_and_others_are_told_apart():
    scalars, others = flatten_scalars({"a": np.float64(1.5), "g": {"b": 2}, "cm": np.ones((2, 2)), "one": np.ones(1)})
    assert scalars == {"a": 1.5, "g/b": 2}
    assert set(others) == {"cm", "one"}
