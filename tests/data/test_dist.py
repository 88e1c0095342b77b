import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.data import Dist
from nitro_cli.errors import DataError


@given(n=st.integers(0, 500), count=st.integers(1, 17))
def test_parts_are_those_of_numpy_array_split(n, count):
    parts = [list(Dist(i, count).range(n)) for i in range(count)]
    expected = [part.tolist() for part in np.array_split(np.arange(n), count)]
    assert parts == expected


def test_one_process_owns_everything():
    assert Dist().range(7) == range(7)


@pytest.mark.parametrize(("index", "count"), [(0, 0), (2, 2), (-1, 2)])
def test_process_outside_of_the_count_is_refused(index, count):
    with pytest.raises(DataError, match=f"process {index} of {count}"):
        Dist(index, count)


def test_negative_length_is_refused():
    with pytest.raises(DataError, match="-1"):
        Dist().range(-1)
