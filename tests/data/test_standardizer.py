"""Standardizing columns by the rows of train alone."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import StandardScaler

from nitro_cli.data import Standardizer
from nitro_cli.errors import PreprocessingError

TABLE = [[1, 5], [3, 5], [100, 7]]


def test_mean_and_population_deviation_are_of_the_fitted_rows_alone():
    fitted = Standardizer.fit(TABLE, rows=[0, 1])
    assert (fitted.mean, fitted.scale, fitted.rows) == ((2.0, 5.0), (1.0, 1.0), 2)
    np.testing.assert_array_equal(fitted.transform(TABLE), np.array([[-1, 0], [1, 0], [98, 2]], np.float32))


def test_a_column_of_one_value_has_the_scale_one_whatever_rounding_says():
    column = np.array([[0.1], [0.1], [0.1]])
    assert np.std(column) > 0
    assert Standardizer.fit(column, rows=None) == Standardizer((0.1,), (1.0,), rows=3)


@given(arrays(np.float64, (7, 3), elements=st.floats(-1e6, 1e6, width=32)))
@settings(max_examples=50, deadline=None)
def test_it_is_scikit_learns_scaler(x):
    theirs = StandardScaler().fit(x)
    ours = Standardizer.fit(x, rows=None, dtype="float64")
    varies = x.min(axis=0) != x.max(axis=0)
    near = {"rtol": 1e-12, "atol": 1e-12 * (1 + np.abs(x).max())}
    np.testing.assert_allclose(ours.mean, theirs.mean_, **near)
    np.testing.assert_allclose(np.array(ours.scale)[varies], np.sqrt(theirs.var_)[varies], **near)
    assert np.all(np.array(ours.scale)[~varies] == 1)


def test_only_the_fitted_rows_are_read():
    rows = [[1.0, 2.0], "never looked at", [3.0, 4.0]]
    assert Standardizer.fit(rows, rows=[0, 2]).mean == (2.0, 3.0)
    x = np.array([[1.0], [np.nan], [3.0]])
    assert Standardizer.fit(x, rows=[0, 2]).mean == (2.0,)


@pytest.mark.parametrize("make", [dict, pd.DataFrame, pa.table])
def test_tables_of_any_kind_are_read_by_the_names_of_their_columns(make):
    table = make({"a": [1.0, 3.0], "b": [5, 9], "c": ["x", "y"]})
    fitted = Standardizer.fit(table, rows=[0, 1], columns=["b", "a"], membership="sha256:1")
    assert (fitted.columns, fitted.mean, fitted.membership) == (("b", "a"), (7.0, 2.0), "sha256:1")
    again = make({"b": [5, 9], "a": [1.0, 3.0]})
    np.testing.assert_array_equal(fitted.transform(again), np.array([[-1, -1], [1, 1]], np.float32))
    with pytest.raises(PreprocessingError, match="another order"):
        fitted.transform(make({"a": [1.0], "b": [5]}))
    with pytest.raises(PreprocessingError, match="missing: b; unexpected: d"):
        fitted.transform(make({"a": [1.0], "d": [5]}))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Standardizer.fit([[1.0], [np.inf]], rows=[0, 1]), "column 0 is not finite"),
        (lambda: Standardizer.fit({"a": [1.0], "b": [np.nan]}, rows=None), "'b' is not finite"),
        (lambda: Standardizer.fit({"a": ["x"]}, rows=None), "'a' holds"),
        (lambda: Standardizer.fit(TABLE, rows=[3]), "no row 3"),
        (lambda: Standardizer.fit(TABLE, rows=[]), "no rows"),
        (lambda: Standardizer.fit(TABLE, rows=[0.5]), "whole numbers"),
        (lambda: Standardizer.fit(TABLE, rows=None, columns=["a"]), "no column 'a'"),
        (lambda: Standardizer.fit([1.0, 2.0], rows=None), "not rows and columns"),
        (lambda: Standardizer.fit(TABLE, rows=None, dtype="int32"), "dtype"),
        (lambda: Standardizer.fit(TABLE, rows=None).transform([[1.0]]), "1 columns"),
        (lambda: Standardizer.fit(TABLE, rows=None).transform([[1.0, np.nan]]), "not finite"),
        (lambda: Standardizer((0.0,), (1e-30,)).transform([[1e20]]), "overflows float32"),
        (lambda: Standardizer((0.0,), (1.0, 1.0)), "1 means and 2 scales"),
        (lambda: Standardizer((np.nan,), (1.0,)), "not finite"),
        (lambda: Standardizer((0.0,), (0.0,)), "not above 0"),
        (lambda: Standardizer.of({}), "no document"),
    ],
)
def test_what_cannot_be_standardized_is_refused(call, told):
    with pytest.raises(PreprocessingError, match=told):
        call()


def test_the_state_is_plain_data_with_a_digest_and_arrays_for_a_program():
    fitted = Standardizer.fit(TABLE, rows=[0, 1])
    again = Standardizer.of(fitted.document())
    assert again == fitted
    assert again.identity() == fitted.identity() != Standardizer.fit(TABLE, rows=[0, 2]).identity()
    held = fitted.arrays()
    assert {name: (a.dtype, a.tolist()) for name, a in held.items()} == {
        "mean": (np.float32, [2, 5]),
        "scale": (np.float32, [1, 1]),
    }
    x = np.array(TABLE, np.float32)
    np.testing.assert_array_equal(fitted.traced(x), fitted.transform(TABLE))
