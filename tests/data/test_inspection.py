import os
import warnings

import numpy as np
import pytest

from nitro_cli.data import ArrayBatches, FieldSpec, NoPrefetch, Prefetch, WithLength, default_workers, inspect_split
from nitro_cli.errors import DataError, NitroWarning


def batch(value=0, size=2):
    return {"x": np.full((size, 3), value, np.float32)}


class Iterable:
    """Iterates only."""

    def __init__(self, batches):
        self.batches = batches
        self.closed = 0
        self.drawn = 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        try:
            for item in self.batches:
                self.drawn += 1
                yield item
        finally:
            self.closed += 1


class Indexed:
    seed = None

    def __init__(self, batches):
        self.batches = batches
        self.calls = []

    def __len__(self):
        return len(self.batches)

    def begin_epoch(self, epoch, seed):
        self.calls.append((epoch, seed))
        return None

    def batch_at(self, index, plan):
        return self.batches[index]


def test_split_says_what_the_first_batch_is():
    arrays = {"image": np.zeros((10, 28, 28), np.uint8), "label": np.arange(10)}
    split = inspect_split("val", ArrayBatches(arrays, 4))
    assert (split.name, split.batches, split.batch_size) == ("val", 3, 4)
    assert split.fields == {
        "image": FieldSpec(np.dtype(np.uint8), (28, 28)),
        "label": FieldSpec(np.dtype(np.int64), ()),
    }
    np.testing.assert_array_equal(split.example["label"], np.arange(4))


def test_iterable_source_gives_one_batch_and_is_closed():
    source = Iterable([batch()] * 3)
    split = inspect_split("train", source, train=True)
    assert (source.drawn, source.closed) == (1, 1)
    assert split.prefetch.path == "iterator"
    assert split.prefetch.workers == 1
    assert split.prefetch.skips_on_reentry
    assert "batch_at and begin_epoch" in split.prefetch.note


def test_indexed_source_is_drawn_from_the_evaluation_plan_with_the_seed_that_holds():
    source = Indexed([batch()] * 3)
    split = inspect_split("val", source, seed=7)
    assert source.calls == [(0, 7)]
    assert not split.prefetch.skips_on_reentry
    source.seed = 5
    inspect_split("val", source, seed=7)
    assert source.calls[-1] == (0, 5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((b for b in [batch()]), "is an iterator, which can be read only once"),
        (iter([batch()]), "is an iterator"),
        (map(dict, [batch()]), "is an iterator"),
        ([], "is empty"),
        (Iterable([]), "is empty"),
        ({"x": np.zeros(3)}, r"is a mapping with the keys \['x'\]"),
        (None, "is None"),
        (Iterable, "is the class Iterable"),
        (3, "has no length"),
        ([np.zeros(3)], "is a ndarray, not a mapping"),
        ([(np.zeros(3), np.zeros(3))], "is a tuple, not a mapping"),
        ([{"x": np.zeros(3), "y": np.zeros(2)}], "`y` has 2 samples, field `x` has 3"),
        ([{"x": np.zeros((0, 3))}], "has no samples"),
        ([None], "returned None"),
    ],
)
def test_broken_promises_name_the_split(source, message):
    with pytest.raises(DataError, match=message) as caught:
        inspect_split("val", source)
    assert "split `val`" in caught.value.where


def test_source_without_length_is_refused_with_the_fix():
    class NoLength:
        def __iter__(self):
            return iter([batch()] * 3)

    with pytest.raises(DataError, match=r"NoLength\) has no length") as caught:
        inspect_split("train", NoLength())
    assert "WithLength(source, batches)" in caught.value.fix
    assert inspect_split("train", WithLength(NoLength(), 3), train=True).batches == 3


def test_source_that_yields_nothing_is_named():
    class Liar(Iterable):
        def __len__(self):
            return 4

    with pytest.raises(DataError, match="yields no batch, its length says 4"):
        inspect_split("val", Liar([]))


def test_source_that_cannot_be_iterated_is_named():
    class Nothing:
        def __len__(self):
            return 4

    with pytest.raises(DataError, match="cannot be iterated"):
        inspect_split("val", Nothing())


def test_training_refuses_a_partial_final_batch_with_both_sizes():
    arrays = {"x": np.zeros((10, 1))}
    with pytest.raises(DataError, match="last of 3 batches has 2 samples, the first has 4"):
        inspect_split("train", ArrayBatches(arrays, 4), train=True)
    assert inspect_split("val", ArrayBatches(arrays, 4)).batches == 3
    assert inspect_split("train", ArrayBatches(arrays, 4, drop_last=True), train=True).batches == 2


@pytest.mark.parametrize("kind", [list, Indexed])
def test_training_refuses_a_partial_final_batch_of_any_addressable_source(kind):
    with pytest.raises(DataError, match="last of 3 batches has 1 samples, the first has 2"):
        inspect_split("train", kind([batch(), batch(), batch(size=1)]), train=True)


def test_training_refuses_batches_that_accum_does_not_divide():
    with pytest.raises(DataError, match="7 batches do not divide into steps of accum=3 micro-batches: 1 left over"):
        inspect_split("train", [batch()] * 7, train=True, accum=3)
    assert inspect_split("val", [batch()] * 7, accum=3).batches == 7


@pytest.mark.parametrize("method", ["batch_at", "begin_epoch"])
def test_methods_that_take_other_arguments_are_refused(method):
    source = Indexed([batch()])
    setattr(source, method, lambda only: None)
    with pytest.raises(DataError, match=f"`{method}.only.` does not take the two arguments"):
        inspect_split("train", source)


def test_batch_at_alone_is_read_in_order():
    class Half(Iterable):
        def batch_at(self, index, plan):
            raise AssertionError("never called")

    split = inspect_split("train", Half([batch()] * 2), train=True)
    assert split.prefetch.path == "iterator"
    assert "begin_epoch" in split.prefetch.note


def test_own_error_of_a_source_passes_with_a_note():
    class Broken(Indexed):
        def batch_at(self, index, plan):
            raise OSError("no such shard")

    with pytest.raises(OSError, match="no such shard") as caught:
        inspect_split("train", Broken([batch()]))
    assert "first batch of split `train`" in caught.value.__notes__[0]


def test_default_prefetch_has_a_producer_per_core_and_at_most_four(monkeypatch):
    for cores, expected in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)), raising=False)
        assert default_workers() == expected
        plan = inspect_split("train", Indexed([batch()])).prefetch
        assert (plan.path, plan.workers, plan.device_batches, plan.host_batches) == (
            "indexed",
            expected,
            1,
            2 * expected,
        )
        assert plan.ordered


def test_wrappers_choose_the_prefetch_and_pass_iteration_through():
    source = Indexed([batch()] * 3)
    wrapped = Prefetch(source, workers=3, device_batches=2, host_batches=5, ordered=False)
    split = inspect_split("train", wrapped)
    plan = split.prefetch
    assert split.source is source
    assert (plan.workers, plan.device_batches, plan.host_batches, plan.ordered) == (3, 2, 5, False)
    assert "unordered" in plan.note
    inline = inspect_split("train", NoPrefetch(source)).prefetch
    assert (inline.path, inline.workers, inline.device_batches) == ("inline", 0, 0)
    items = [batch(1), batch(2)]
    assert list(Prefetch(items)) == items
    assert len(NoPrefetch(items)) == 2


def test_more_workers_than_a_source_can_serve_is_a_warning():
    with pytest.warns(NitroWarning, match="split `train`: 3 workers asked for, .* by 1 only"):
        plan = inspect_split("train", Prefetch(Iterable([batch()]), workers=3)).prefetch
    assert plan.workers == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inspect_split("train", Iterable([batch()]))
        inspect_split("train", [batch()])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device_batches": 0}, "`device_batches` is 0"),
        ({"workers": 0}, "`workers` is 0"),
        ({"host_batches": -1}, "`host_batches` is -1"),
        ({"device_batches": None}, "`device_batches` is None"),
        ({"workers": 1.5}, "not a whole number"),
        ({"workers": 4, "host_batches": 3}, "3 host batches for 4 workers"),
    ],
)
def test_impossible_prefetch_settings_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        Prefetch([batch()], **settings)


def test_no_device_batch_points_to_no_prefetch():
    with pytest.raises(DataError) as caught:
        Prefetch([batch()], device_batches=0)
    assert "NoPrefetch(source)" in caught.value.fix


def test_wrapping_twice_is_refused():
    with pytest.raises(DataError, match="Prefetch around NoPrefetch"):
        Prefetch(NoPrefetch([batch()]))
    with pytest.raises(DataError, match="NoPrefetch around Prefetch"):
        NoPrefetch(Prefetch([batch()]))


def test_small_arrays_stay_on_the_device_unless_streaming_was_asked_for(monkeypatch):
    arrays = {"x": np.zeros((8, 4), np.float32)}

    def resident(source):
        return inspect_split("train", source).resident is not None

    assert resident(ArrayBatches(arrays, 2))
    assert not resident(ArrayBatches(arrays, 2, resident=False))
    assert not resident(ArrayBatches(arrays, 2, transform=lambda b, rng: b))
    assert not resident(NoPrefetch(ArrayBatches(arrays, 2)))
    assert not resident(Prefetch(ArrayBatches(arrays, 2)))
    assert resident(Prefetch(ArrayBatches(arrays, 2, resident=True)))
    assert not resident([arrays])
    monkeypatch.setattr("nitro_cli.data.arrays.RESIDENT_LIMIT", 127)
    assert not resident(ArrayBatches(arrays, 2))
    assert resident(ArrayBatches(arrays, 2, resident=True))


def test_arrays_of_256_mib_are_the_largest_kept_by_default():
    source = ArrayBatches({"x": np.broadcast_to(np.zeros(1, np.uint8), (2**28, 1))}, 2**20)
    assert source.resident_arrays() is not None
    source = ArrayBatches({"x": np.broadcast_to(np.zeros(1, np.uint8), (2**28 + 1, 1))}, 2**20)
    assert source.resident_arrays() is None
