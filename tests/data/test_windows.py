"""Batches gathered into windows: every batch once and in its place, in memory that is used again."""

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.data import (
    ArrayBatches,
    Dist,
    FieldSpec,
    NoPrefetch,
    Prefetch,
    StreamItem,
    WindowItem,
    WindowPlan,
    inspect_split,
)
from nitro_cli.errors import DataError

LONG = 120.0
"""Seconds to wait for another thread, where only a defect makes it take that long."""


class Numbers:
    """Indexed source; batch i is two rows of i, of the width `width(i)`."""

    def __init__(self, n, build=lambda index: None, width=lambda index: 3):
        self.n, self.build, self.width = n, build, width

    def __len__(self):
        return self.n

    def begin_epoch(self, epoch, seed):
        return None

    def batch_at(self, index, plan):
        self.build(index)
        return {"i": np.full((2, self.width(index)), index), "name": np.array(["a", "b"])}


class Iterating(Numbers):
    """The same, in order only, out of one array."""

    batch_at = None

    def __iter__(self):
        array = np.empty((2, 3), np.int64)
        for index in range(self.n):
            self.build(index)
            array[:] = index
            yield {"i": array, "name": np.array(["a", "b"])}


def plan(capacity, group=1, place=lambda arrays: {name: rows.copy() for name, rows in arrays.items()}):
    return WindowPlan({"i": FieldSpec(np.dtype(np.int32), (3,))}, 2, capacity, group, place)


def delivered(source, windows, wanted=99, start=0, **words):
    """What a pass delivers: for each item its first index and the numbers of its batches."""
    split = inspect_split("train", source, train=True, accum=windows.group)
    found = []
    with split.stream(epoch=1, seed=0, start=start, windows=windows, **words) as stream:
        stream.want(wanted)
        for item in stream:
            if isinstance(item, WindowItem):
                rows = item.device["i"][: item.count]
                assert rows.dtype == np.int32
                assert (rows == rows[:, :1, :1]).all()
                assert len(item.states) == item.count
                found.append((item.index, rows[:, 0, 0].tolist()))
            else:
                assert isinstance(item, StreamItem)
                found.append((item.index, int(item.host["i"][0, 0])))
    return found


@given(
    n=st.integers(1, 12),
    group=st.integers(1, 3),
    steps=st.integers(1, 5),
    wanted=st.integers(1, 20),
    start=st.integers(0, 12),
    workers=st.integers(0, 3),
    ahead=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_every_batch_comes_once_and_in_order_in_windows_of_whole_steps(n, group, steps, wanted, start, workers, ahead):
    n, start = n * group, min(start, n) * group
    source = Prefetch(Numbers(n), workers=workers) if workers else NoPrefetch(Numbers(n))
    found = delivered(source, plan(steps * group, group), wanted, start, ahead=ahead)
    assert [i for _, batches in found for i in batches] == list(range(start, n))
    assert [first for first, _ in found] == [batches[0] for _, batches in found]
    for _, batches in found:
        assert len(batches) % group == 0
        assert len(batches) <= min(steps * group, max(wanted, group))


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_a_window_reads_each_batch_before_the_source_refills_its_array(wrap):
    found = delivered(wrap(Iterating(7)), plan(4))
    assert [i for _, batches in found for i in batches] == list(range(7))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("dist", [Dist(), Dist(1, 3)])
def test_arrays_fill_a_window_with_the_batches_that_they_give_one_by_one(shuffle, dist):
    arrays = {"i": np.arange(84 * 3).reshape(84, 3), "x": np.arange(84, dtype=np.float32)}
    source = ArrayBatches(arrays, 6, shuffle=shuffle, seed=3).part(dist)
    epoch = source.begin_epoch(2, 0)
    out = {"i": np.zeros((8, len(dist.range(6)), 3), np.int64), "x": np.zeros((8, len(dist.range(6))), np.float32)}
    source.fill(out, 4, 5, epoch)
    for at in range(5):
        for name, value in source.batch_at(4 + at, epoch).items():
            np.testing.assert_array_equal(out[name][at], value)
    assert not out["x"][5:].any()


def test_arrays_are_gathered_at_once_without_threads_where_nothing_has_to_be_moved():
    arrays = {"i": np.arange(60, dtype=np.int32).repeat(2)[:, None].repeat(3, 1)}
    calls = []

    class Watched(ArrayBatches):
        def fill(self, out, index, count, plan):
            calls.append((index, count))
            assert threading.current_thread() is threading.main_thread()
            super().fill(out, index, count, plan)

    found = delivered(Watched(arrays, 2), plan(8), 8, ahead=False)
    assert [i for _, batches in found for i in batches] == list(range(60))
    assert calls == [(at, min(8, 60 - at)) for at in range(0, 60, 8)]


def test_numbers_that_the_device_narrows_are_checked_before_they_are_gathered():
    arrays = {"i": np.zeros((20, 3), np.int64)}
    arrays["i"][13, 1] = 3_000_000_000
    with pytest.raises(DataError, match=r"batch 6, row 1, field `i`"):
        delivered(ArrayBatches(arrays, 2), plan(8), 8, ahead=False, device_fields={"i"})


@pytest.mark.parametrize("wrap", [NoPrefetch, lambda s: Prefetch(s, workers=2)])
@pytest.mark.parametrize("group", [1, 2])
def test_from_a_batch_of_another_shape_on_they_come_one_by_one(wrap, group):
    source = wrap(Numbers(12, width=lambda index: 4 if index == 5 else 3))
    found = delivered(source, plan(4 * group, group))
    whole = 5 - 5 % group
    assert [i for _, batches in found if isinstance(batches, list) for i in batches] == list(range(whole))
    assert [(first, i) for first, i in found if isinstance(i, int)] == [(i, i) for i in range(whole, 12)]


@pytest.mark.parametrize("wrap", [NoPrefetch, lambda s: Prefetch(s, workers=2)])
def test_a_failing_batch_is_raised_once_those_before_it_are_delivered(wrap):
    def build(index):
        if index == 5:
            raise KeyError("missing shard")

    seen = []

    def read(stream):
        for item in stream:
            seen.extend(item.device["i"][: item.count, 0, 0].tolist())

    split = inspect_split("train", wrap(Numbers(9, build)))
    with split.stream(epoch=1, seed=0, windows=plan(4)) as stream:
        stream.want(4)
        with pytest.raises(KeyError, match="missing shard"):
            read(stream)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_window_waits_for_no_batch_beyond_its_first_step(ahead):
    release = threading.Event()
    armed = False

    def build(index):
        if armed and index == 2:
            assert release.wait(LONG)

    split = inspect_split("train", Prefetch(Numbers(8, build), workers=1), train=True, accum=2)
    armed = True
    with split.stream(epoch=1, seed=0, windows=plan(8, 2), ahead=ahead) as stream:
        stream.want(8)
        assert next(stream).count == 2
        release.set()
        assert sum(item.count for item in stream) == 6


def test_what_can_be_built_at_once_in_the_loops_own_thread_is_bounded_by_time(monkeypatch):
    monkeypatch.setattr("nitro_cli.data.stream.GATHER_SECONDS", 0.0)
    assert [len(batches) for _, batches in delivered(NoPrefetch(Numbers(6)), plan(6, 2))] == [2, 2, 2]
    monkeypatch.setattr("nitro_cli.data.stream.GATHER_SECONDS", LONG)
    assert [len(batches) for _, batches in delivered(NoPrefetch(Numbers(6)), plan(6, 2))] == [6]


@pytest.mark.parametrize("wrap", [NoPrefetch, lambda s: Prefetch(s, workers=2)])
@pytest.mark.parametrize("ahead", [True, False])
def test_memory_of_windows_is_used_again(wrap, ahead):
    places, memory, held = set(), [], []

    def place(arrays):
        places.add(arrays["i"].ctypes.data)
        memory.append(weakref.ref(arrays["i"].base))
        return arrays

    split = inspect_split("train", wrap(Numbers(200)))
    with split.stream(epoch=1, seed=0, windows=plan(4, place=place), ahead=ahead) as stream:
        stream.want(4)
        for item in stream:
            held = [*held[-1:], item.device]
            if item.index < 150:  # none was let go to make another
                assert all(raw() is not None for raw in memory)
    assert 2 <= len(places) <= 4  # two here, one staged, one being filled


def test_no_more_windows_are_moved_than_there_is_room_for():
    moved, taken = 0, 0
    release = threading.Semaphore(0)

    def place(arrays):
        nonlocal moved
        moved += 1
        release.release()
        return None

    split = inspect_split("train", Prefetch(Numbers(40), workers=1, device_batches=1))
    with split.stream(epoch=1, seed=0, windows=plan(2, place=place)) as stream:
        stream.want(2)
        for _ in stream:
            taken += 1
            assert moved <= taken + 2


def test_memory_mapped_arrays_fill_windows(tmp_path: Path):
    np.save(tmp_path / "i.npy", np.arange(20, dtype=np.int32).repeat(2)[:, None].repeat(3, 1))
    source = ArrayBatches({"i": np.load(tmp_path / "i.npy", mmap_mode="r")}, 2, resident=False)
    found = delivered(source, plan(8), 8, ahead=False)
    assert [i for _, batches in found for i in batches] == list(range(20))
