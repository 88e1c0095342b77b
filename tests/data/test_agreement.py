import numpy as np
import pytest

from nitro_cli.data import ArrayBatches, Prefetch, check_batch_at
from nitro_cli.errors import DataError

DATA = np.arange(12, dtype=np.int32)


class Windows:
    """Three batches of four; `first` says where a batch begins in the data."""

    seed = None

    def __init__(self, first=lambda index: index * 4, length=3):
        self.first = first
        self.length = length

    def __len__(self):
        return self.length

    def begin_epoch(self, epoch, seed):
        return epoch

    def batch_at(self, index, plan):
        begin = self.first(index)
        return {"x": DATA[begin : begin + 4]}

    def __iter__(self):
        return iter([{"x": DATA[i * 4 : i * 4 + 4]} for i in range(3)])


def test_agreeing_source_passes():
    check_batch_at(Windows())
    check_batch_at(Windows(), values=True)
    check_batch_at(Prefetch(ArrayBatches({"x": DATA}, 5, shuffle=True)), values=True)


def test_sample_index_taken_for_a_batch_index_is_caught_by_values():
    check_batch_at(Windows(lambda index: index))
    with pytest.raises(DataError, match="different contents") as caught:
        check_batch_at(Windows(lambda index: index), values=True)
    assert "batch 1, field `x`" in caught.value.where
    assert "BATCH index" in caught.value.fix


def test_different_shapes_are_caught_without_values():
    with pytest.raises(DataError, match=r"int32\[2\], iteration gives int32\[4\]"):
        check_batch_at(Windows(lambda index: index * 5))


@pytest.mark.parametrize(("length", "message"), [(4, "ends after 3 batches"), (2, "yields more than the 2")])
def test_length_that_lies_is_caught(length, message):
    with pytest.raises(DataError, match=message):
        check_batch_at(Windows(lambda index: 0, length))


def test_different_fields_and_none_are_caught():
    source = Windows()
    source.batch_at = lambda index, plan: {"y": DATA[:4]}
    with pytest.raises(DataError, match=r"\['y'\], iteration has \['x'\]"):
        check_batch_at(source)
    source.batch_at = lambda index, plan: None
    with pytest.raises(DataError, match="returned None"):
        check_batch_at(source)


def test_equal_nans_agree():
    check_batch_at(ArrayBatches({"x": np.array([np.nan, 1.0])}, 1), values=True)


def test_source_without_batch_at_is_refused():
    with pytest.raises(DataError, match="no `batch_at` and `begin_epoch`"):
        check_batch_at([{"x": DATA}])
