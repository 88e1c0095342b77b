"""The array a Device value becomes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import device_array


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "float32"),
        (3, "int32"),
        (True, "bool"),
        ([1, 2], "int32"),
        ([1.0, 2], "float32"),
        (((1.0,), (2.0,)), "float32"),
        (1j, "complex64"),
        (np.ones(2), "float32"),
        (np.arange(3), "int32"),
        (np.uint64(3), "uint32"),
        (np.float16(1), "float16"),
        (np.ones(2, np.uint8), "uint8"),
        (np.zeros((0, 3)), "float32"),
    ],
)
def test_dtypes(value, dtype):
    array = device_array(value)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.asarray(value))


def test_an_array_of_a_device_dtype_is_kept_as_it_is():
    array = np.ones(3, np.float32)
    assert device_array(array) is array
    assert device_array(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


@given(st.one_of(st.booleans(), st.integers(-(2**31), 2**31 - 1), st.floats(width=32), st.lists(st.floats(width=32))))
def test_the_dtype_and_values_are_those_jax_gives_the_same_value(value):
    ours = device_array(value)
    theirs = jax.device_get(jnp.asarray(value))
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**80, np.array([2**40]), np.uint64(2**40), [2**31]])
def test_an_integer_that_does_not_fit_is_refused(value):
    with pytest.raises(ConfigError, match="Device field"):
        device_array(value)


@pytest.mark.parametrize("value", [1e300, np.array([1.0, -1e39])])
def test_a_float_that_would_become_infinite_is_refused(value):
    with pytest.raises(ConfigError, match="overflows"):
        device_array(value)


def test_infinities_and_nan_pass():
    np.testing.assert_array_equal(device_array([np.inf, -np.inf, np.nan]), np.float32([np.inf, -np.inf, np.nan]))


@pytest.mark.parametrize(
    "value", ["a", None, {"a": 1}, {1}, object(), b"x", [[1], [1, 2]], ["a"], np.array(["a"]), np.array([None]), [None]]
)
def test_what_is_no_array_of_numbers_is_refused(value):
    with pytest.raises(ConfigError, match="numbers or arrays") as caught:
        device_array(value)
    assert "GraphConst" in caught.value.fix
