import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.data import ArrayBatches, check_batch_at, inspect_split
from nitro_cli.errors import DataError


def ids(n):
    return {"id": np.arange(n, dtype=np.int32), "x": np.arange(2 * n, dtype=np.float32).reshape(n, 2)}


def epoch_ids(source, epoch, seed):
    plan = source.begin_epoch(epoch, seed)
    return [source.batch_at(i, plan)["id"].tolist() for i in range(len(source))]


@given(
    n=st.integers(1, 60),
    size=st.integers(1, 20),
    drop=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
)
@settings(deadline=None)
def test_every_sample_comes_once_an_epoch_in_whole_batches(n, size, drop, shuffle, seed, epoch):
    source = ArrayBatches(ids(n), size, shuffle=shuffle, drop_last=drop)
    batches = epoch_ids(source, epoch, seed)
    seen = [i for batch in batches for i in batch]
    assert len(set(seen)) == len(seen) == (n // size * size if drop else n)
    assert len(batches) == len(source) == (n // size if drop else -(-n // size))
    assert all(len(batch) == size for batch in batches[:-1])
    if batches:
        assert len(batches[-1]) == source.last_batch_size
    if not shuffle:
        assert seen == list(range(len(seen)))


def test_order_is_that_of_numpys_seed_sequence():
    source = ArrayBatches(ids(10), 5, shuffle=True)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence((42, 3)))).permutation(10)
    assert epoch_ids(source, 3, 42) == expected.reshape(2, 5).tolist()


def test_order_depends_on_epoch_and_seed_only():
    a, b = ArrayBatches(ids(50), 7, shuffle=True), ArrayBatches(ids(50), 7, shuffle=True)
    epoch_ids(a, 9, 1)
    assert epoch_ids(a, 2, 1) == epoch_ids(b, 2, 1)
    assert epoch_ids(a, 2, 1) != epoch_ids(a, 3, 1)
    assert epoch_ids(a, 2, 1) != epoch_ids(a, 2, 2)


def test_own_seed_goes_before_the_runs():
    own = ArrayBatches(ids(50), 7, shuffle=True, seed=np.int64(5))
    run = ArrayBatches(ids(50), 7, shuffle=True)
    assert epoch_ids(own, 1, 99) == epoch_ids(run, 1, 5) != epoch_ids(run, 1, 99)


def test_fields_are_gathered_together():
    source = ArrayBatches(ids(50), 7, shuffle=True)
    plan = source.begin_epoch(1, 0)
    batch = source.batch_at(2, plan)
    np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["id"])


def test_iterating_is_the_evaluation_pass():
    source = ArrayBatches(ids(23), 5, shuffle=True, seed=3)
    assert [batch["id"].tolist() for batch in source] == epoch_ids(source, 0, 1)
    check_batch_at(source, values=True)


def test_unshuffled_batches_are_read_only_views_and_the_users_array_stays_writable():
    arrays = ids(10)
    source = ArrayBatches(arrays, 5)
    batch = source.batch_at(1, source.begin_epoch(0, 0))
    assert np.shares_memory(batch["x"], arrays["x"])
    with pytest.raises(ValueError, match="read-only"):
        batch["x"][0] = 1
    arrays["x"][0] = 7
    assert source.arrays["x"][0, 0] == 7


def test_transform_gets_writable_copies_and_a_generator_of_its_batch():
    def jitter(batch, rng):
        batch["x"] += rng.random(batch["x"].shape, dtype=np.float32)
        return batch

    for shuffle in (False, True):
        arrays = ids(20)
        before = arrays["x"].copy()
        source = ArrayBatches(arrays, 4, shuffle=shuffle, transform=jitter)
        plan = source.begin_epoch(2, 7)
        first = [source.batch_at(i, plan)["x"].copy() for i in range(5)]
        again = [source.batch_at(i, source.begin_epoch(2, 7))["x"].copy() for i in reversed(range(5))]
        np.testing.assert_array_equal(first, again[::-1])
        np.testing.assert_array_equal(arrays["x"], before)
        other = source.batch_at(0, source.begin_epoch(3, 7))["x"]
        assert not np.array_equal(other, first[0])


def test_batches_of_one_epoch_draw_different_numbers():
    draws = []
    source = ArrayBatches(ids(12), 2, transform=lambda batch, rng: draws.append(rng.random()) or batch)
    list(source)
    plan_draw = np.random.default_rng(np.random.SeedSequence((0, 0))).random()
    assert len({*draws, plan_draw}) == 7


def test_held_batches_are_never_written_again():
    rows = 16 * 1024
    source = ArrayBatches({"x": np.arange(8 * rows, dtype=np.int64)}, rows, shuffle=True)
    plan = source.begin_epoch(1, 0)
    held = [source.batch_at(i, plan)["x"] for i in range(8)]
    views = [batch[5:9] for batch in held]
    kept = [view.copy() for view in views]
    del held
    for i in range(8):
        source.batch_at(i, plan)["x"].fill(-1)
    np.testing.assert_array_equal(views, kept)


def test_released_memory_is_used_again_within_an_epoch():
    rows = 16 * 1024
    source = ArrayBatches({"x": np.arange(8 * rows, dtype=np.int64)}, rows, shuffle=True)
    plan = source.begin_epoch(1, 0)
    addresses = {source.batch_at(i, plan)["x"].ctypes.data for i in range(8)}
    assert len(addresses) == 1
    assert next(iter(addresses)) % 64 == 0


def test_memory_mapped_arrays_are_not_read_as_a_whole(tmp_path):
    mapped = np.memmap(tmp_path / "x.bin", np.float32, "w+", shape=(40, 3))
    mapped[:] = np.arange(120, dtype=np.float32).reshape(40, 3)
    source = ArrayBatches({"x": mapped}, 8, shuffle=True)
    assert np.shares_memory(source.arrays["x"], mapped)
    plan = source.begin_epoch(1, 0)
    np.testing.assert_array_equal(source.batch_at(0, plan)["x"], np.asarray(mapped)[plan.order[:8]])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "empty mapping"),
        (np.zeros(3), "ndarray"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "`x` 3, `y` 4"),
        ({"x": np.array([[1], [2, 3]], object)}, "dtype object"),
        ({"x": [1, 2]}, "is a list"),
        ({"x": np.zeros(())}, "is a scalar"),
        ({"x": np.zeros((0, 3))}, "no samples"),
        ({"my field": np.zeros(3)}, "cannot name a batch field"),
    ],
)
def test_wrong_arrays_are_refused(arrays, message):
    with pytest.raises(DataError, match=message):
        ArrayBatches(arrays, 2)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_wrong_batch_size_is_refused(size):
    with pytest.raises(DataError, match="batch_size"):
        ArrayBatches(ids(4), size)


def test_wrong_seed_and_wrong_index_are_refused():
    with pytest.raises(DataError, match="`seed` is 'a'"):
        ArrayBatches(ids(4), 2, seed="a")
    source = ArrayBatches(ids(4), 2)
    with pytest.raises(DataError, match="batch 2 does not exist"):
        source.batch_at(2, source.begin_epoch(0, 0))


def test_resident_excludes_a_transform():
    with pytest.raises(DataError, match="resident=True"):
        ArrayBatches(ids(4), 2, resident=True, transform=lambda batch, rng: batch)


@given(
    n=st.integers(1, 40), size=st.integers(1, 12), drop=st.booleans(), shuffle=st.booleans(), seed=st.integers(0, 99)
)
@settings(deadline=None)
def test_resident_indices_gather_what_the_stream_gathers(n, size, drop, shuffle, seed):
    if drop and n < size:
        return
    source = ArrayBatches(ids(n), size, shuffle=shuffle, drop_last=drop)
    resident = inspect_split("val", source, seed=seed).resident
    table = resident.indices(4, seed)
    assert table.dtype == np.int32
    assert table.shape == (len(source), min(size, n))
    gathered = [resident.arrays["id"][row][:real].tolist() for row, real in zip(table, resident.sizes, strict=True)]
    assert gathered == epoch_ids(source, 4, seed)
    assert set(table[-1, resident.sizes[-1] :]) <= {table[-1, resident.sizes[-1] - 1]}


class Doubled(ArrayBatches):
    """Makes its batches itself."""

    def batch_at(self, index, plan):
        return {name: 2 * array for name, array in super().batch_at(index, plan).items()}


def test_a_subclass_that_makes_its_own_batches_is_asked_for_them_and_never_kept_on_the_device():
    rows = {"x": np.ones((8, 1), np.float32)}
    assert Doubled(rows, 4).resident_arrays() is None
    assert ArrayBatches(rows, 4).resident_arrays() is not None
    with pytest.raises(DataError, match="Doubled writes `batch_at` itself"):
        Doubled(rows, 4, resident=True)
