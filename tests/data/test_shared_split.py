"""A split as one process of several reads it, and as evaluation takes it."""

import numpy as np
import pytest

from nitro_cli.data import ArrayBatches, Dist, inspect_split
from nitro_cli.errors import DataError


def _rows(split):
    with split.stream(epoch=0, seed=0) as stream:
        return [item.host["x"].tolist() for item in stream]


def test_a_process_trains_on_its_rows_and_evaluates_whole_batches():
    split = inspect_split("train", ArrayBatches({"x": np.arange(8)}, 4), train=True)
    second = split.part(Dist(1, 2))
    assert _rows(second) == [[2, 3], [6, 7]]
    assert _rows(second.whole()) == _rows(split) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_samples_that_only_one_process_has_are_not_evaluated():
    own = inspect_split("train", ArrayBatches({"x": np.arange(4)}, 2), train=True).beside_others(2)
    with pytest.raises(DataError, match="every process has samples of its own"):
        own.whole()
