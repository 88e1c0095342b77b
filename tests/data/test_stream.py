import gc
import itertools
import os
import signal
import threading
import traceback
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.data import ArrayBatches, NoPrefetch, Prefetch, WaitEnded, inspect_split, prefetch
from nitro_cli.errors import DataError, NitroWarning

LONG = 120.0
"""Seconds to wait for another thread, where only a defect makes it take that long."""


class Numbers:
    """Indexed source; batch i holds i, and `build` may interfere."""

    def __init__(self, n, build=lambda index: None, shape=(2,)):
        self.n = n
        self.build = build
        self.shape = shape

    def __len__(self):
        return self.n

    def begin_epoch(self, epoch, seed):
        return epoch, seed

    def batch_at(self, index, plan):
        return self.build(index) or {"i": np.full(self.shape, index), "plan": np.array([plan] * self.shape[0])}


class Generating:
    """Iterates only; yields what `make(epoch call)` yields."""

    def __init__(self, n, make):
        self.n = n
        self.make = make

    def __len__(self):
        return self.n

    def __iter__(self):
        return self.make()


def numbers(n):
    return ({"i": np.full(2, i)} for i in range(n))


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def drain(stream, seen):
    for item in stream:
        seen.append(item.index)


def indices(split, **kw):
    with split.stream(**({"epoch": 1, "seed": 0} | kw)) as stream:
        return [(item.index, int(item.host["i"][0])) for item in stream]


@given(
    n=st.integers(1, 30),
    workers=st.integers(1, 5),
    device=st.integers(1, 3),
    extra=st.integers(0, 4),
    start=st.integers(0, 30),
    ahead=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_ordered_delivery_is_the_sources_order_at_any_worker_count(n, workers, device, extra, start, ahead):
    source = Prefetch(Numbers(n), workers=workers, device_batches=device, host_batches=workers + extra)
    start = min(start, n)
    assert indices(inspect_split("train", source), start=start, ahead=ahead) == [(i, i) for i in range(start, n)]


@given(n=st.integers(1, 30), workers=st.integers(1, 5), start=st.integers(0, 30), ahead=st.booleans())
@settings(deadline=None, max_examples=30)
def test_unordered_delivery_brings_every_batch_once(n, workers, start, ahead):
    split = inspect_split("train", Prefetch(Numbers(n), workers=workers, ordered=False))
    start = min(start, n)
    assert sorted(indices(split, start=start, ahead=ahead)) == [(i, i) for i in range(start, n)]


def test_order_holds_when_later_batches_are_built_first():
    later = threading.Event()

    def build(index):
        if index == 0 and armed:
            assert later.wait(LONG)
        if index == 3:
            later.set()

    armed = False
    split = inspect_split("train", Prefetch(Numbers(6, build), workers=2, host_batches=4))
    armed = True
    assert indices(split) == [(i, i) for i in range(6)]


def test_unordered_delivery_does_not_wait_for_a_slow_batch():
    release = threading.Event()
    armed = False

    def build(index):
        if armed and index == 0:
            assert release.wait(LONG)

    split = inspect_split("train", Prefetch(Numbers(4, build), workers=2, ordered=False))
    armed = True
    with split.stream(epoch=1, seed=0) as stream:
        assert next(stream).index != 0
        release.set()
        assert 0 in [item.index for item in stream]


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch, lambda s: Prefetch(s, workers=3)])
def test_paths_agree_bitwise_and_reenter_an_epoch_exactly(wrap):
    arrays = {"i": np.arange(40, dtype=np.int32), "x": np.random.default_rng(0).random((40, 5))}

    def noise(batch, rng):
        return batch | {"x": batch["x"] + rng.random(batch["x"].shape)}

    def run(source, start):
        with inspect_split("train", source, train=True).stream(epoch=3, seed=9, start=start) as stream:
            return [item.host for item in stream]

    source = ArrayBatches(arrays, 4, shuffle=True, transform=noise)
    plan = source.begin_epoch(3, 9)
    for start in (0, 6):
        got = run(wrap(source), start)
        assert len(got) == 10 - start
        for index, batch in enumerate(got, start):
            for name, value in source.batch_at(index, plan).items():
                np.testing.assert_array_equal(batch[name], value)


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_epoch_and_seed_reach_the_plan(wrap):
    with inspect_split("train", wrap(Numbers(2))).stream(epoch=4, seed=11) as stream:
        assert [item.host["plan"][0].tolist() for item in stream] == [[4, 11]] * 2


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
@pytest.mark.parametrize("kind", [lambda n: list(numbers(n)), lambda n: Generating(n, lambda: numbers(n)), Numbers])
def test_every_kind_of_source_starts_at_any_batch(kind, wrap):
    split = inspect_split("train", wrap(kind(5)))
    assert indices(split, start=3) == [(3, 3), (4, 4)]
    assert indices(split, start=5) == []
    assert indices(split) == [(i, i) for i in range(5)]
    with pytest.raises(DataError, match="batch 6 does not exist"):
        split.stream(epoch=1, seed=0, start=6)


def test_skipping_builds_on_one_credit():
    source = Prefetch(Generating(50, lambda: numbers(50)), host_batches=1)
    assert indices(inspect_split("train", source), start=48) == [(48, 48), (49, 49)]


def test_prepare_runs_on_one_thread_and_its_value_is_delivered():
    threads = set()

    def prepare(index, batch):
        threads.add(threading.current_thread().name)
        return index, batch["i"].sum()

    split = inspect_split("train", Prefetch(Numbers(9), workers=3))
    with split.stream(epoch=1, seed=0, prepare=prepare) as stream:
        assert [item.device for item in stream] == [(i, 2 * i) for i in range(9)]
    assert threads == {"nitro-data-train-transfer"}


def test_without_a_transfer_ahead_prepare_runs_in_the_loop_and_producers_still_work_ahead():
    built = threading.Event()
    source = Prefetch(Numbers(9, lambda i: built.set() if i == 4 else None), workers=2, host_batches=5)
    split = inspect_split("train", source)
    with split.stream(epoch=1, seed=0, prepare=lambda i, b: threading.get_ident(), ahead=False) as stream:
        first = next(stream)
        assert built.wait(LONG)
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("nitro-data")}
        assert names == {"nitro-data-train-producer-0", "nitro-data-train-producer-1"}
        assert {item.device for item in [first, *stream]} == {threading.get_ident()}


@pytest.mark.parametrize("ahead", [True, False])
def test_waiting_for_a_producer_is_counted(monkeypatch, ahead):
    waiting = threading.Event()
    ticks = itertools.count()
    armed = False

    def build(index):
        if armed:
            assert waiting.wait(LONG)

    def clock():
        # The loop looks at the clock when it finds no batch: from then on it waits.
        waiting.set()
        return float(next(ticks))

    split = inspect_split("train", Prefetch(Numbers(3, build), workers=1))
    armed = True
    with split.stream(epoch=1, seed=0, ahead=ahead) as stream:
        monkeypatch.setattr(prefetch.time, "perf_counter", clock)
        assert stream.wait_seconds == 0.0
        next(stream)
        assert stream.wait_seconds > 0.0


def test_prepare_runs_in_the_loop_without_prefetch():
    split = inspect_split("train", NoPrefetch(Numbers(2)))
    with split.stream(epoch=1, seed=0, prepare=lambda i, b: threading.get_ident()) as stream:
        assert {item.device for item in stream} == {threading.get_ident()}


class Payload:
    """A device batch that can be counted."""


@pytest.mark.parametrize("device", [1, 2, 3])
def test_device_batches_bound_what_is_on_the_device(device):
    alive = weakref.WeakSet()
    most = 0

    def prepare(index, batch):
        nonlocal most
        payload = Payload()
        alive.add(payload)
        most = max(most, len(alive))
        return payload

    split = inspect_split("train", Prefetch(Numbers(200), workers=2, device_batches=device))
    with split.stream(epoch=1, seed=0, prepare=prepare) as stream:
        for _item in stream:
            pass
    assert device < most <= device + 2


def test_delivered_batches_are_let_go_while_the_next_is_awaited():
    armed, release, gone = False, threading.Event(), [threading.Event() for _ in range(3)]

    def build(index):
        if armed and index == 3:
            release.wait(LONG)

    def prepare(index, batch):
        payload = Payload()
        weakref.finalize(payload, gone[index].set) if index < 3 else None
        return payload

    split = inspect_split("train", Prefetch(Numbers(4, build), workers=1))
    armed = True
    with split.stream(epoch=1, seed=0, prepare=prepare) as stream:
        for _ in range(3):
            next(stream)
        assert all(event.wait(LONG) for event in gone)
        release.set()


@pytest.mark.parametrize("device", [1, 2, 3])
@pytest.mark.parametrize("held", [1, 7])
def test_device_batches_are_staged_while_the_loop_holds_one(device, held):
    staged = threading.Event()

    def prepare(index, batch):
        if index == held + device:
            staged.set()

    split = inspect_split("train", Prefetch(Numbers(50), workers=1, device_batches=device))
    with split.stream(epoch=1, seed=0, prepare=prepare) as stream:
        for item in stream:
            if item.index == held:
                break
        assert staged.wait(LONG)


@pytest.mark.parametrize(("workers", "host"), [(1, 1), (2, 2), (2, 4), (3, 7)])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_host_batches_bound_what_is_built_ahead(workers, host, ordered, ahead):
    lock = threading.Lock()
    built = prepared = most = 0

    def build(index):
        nonlocal built, most
        with lock:
            built += 1
            most = max(most, built - prepared)

    def prepare(index, batch):
        nonlocal prepared
        with lock:
            prepared += 1

    source = Prefetch(Numbers(300, build), workers=workers, host_batches=host, ordered=ordered)
    split = inspect_split("train", source)
    built = most = 0
    with split.stream(epoch=1, seed=0, prepare=prepare, ahead=ahead) as stream:
        assert len(list(stream)) == 300
    assert most <= host


def test_producers_work_ahead_while_the_loop_is_busy():
    ahead = threading.Event()
    split = inspect_split("train", Prefetch(Numbers(9, lambda i: ahead.set() if i == 2 else None), workers=1))
    with split.stream(epoch=1, seed=0) as stream:
        next(stream)
        assert ahead.wait(LONG)


def test_producer_error_comes_in_its_place_with_its_own_traceback():
    def explode(index):
        if index == 3:
            raise KeyError("missing shard")

    for wrap, ahead in ((NoPrefetch, True), (lambda s: Prefetch(s, workers=2), True), (Prefetch, False)):
        split = inspect_split("train", wrap(Numbers(6, explode)))
        seen = []
        with (
            split.stream(epoch=2, seed=0, ahead=ahead) as stream,
            pytest.raises(KeyError, match="missing shard") as caught,
        ):
            drain(stream, seen)
        assert seen == [0, 1, 2]
        assert "explode" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "split `train`, batch 3, epoch 2" in caught.value.__notes__[0]


def test_prepare_error_reaches_the_loop():
    def prepare(index, batch):
        raise MemoryError("device is full")

    for wrap, ahead in ((NoPrefetch, True), (lambda s: s, True), (lambda s: s, False)):
        split = inspect_split("train", wrap(Numbers(6)))
        with (
            split.stream(epoch=1, seed=0, prepare=prepare, ahead=ahead) as stream,
            pytest.raises(MemoryError, match="is full"),
        ):
            next(stream)


def test_error_does_not_wait_for_a_blocked_producer_for_ever(monkeypatch):
    monkeypatch.setattr(prefetch, "ORDER_SECONDS", 0.05)
    monkeypatch.setattr(prefetch, "JOIN_SECONDS", 0.05)
    release = threading.Event()
    armed = False

    def build(index):
        if armed and index == 0:
            release.wait(LONG)
        if index == 1:
            raise OSError("disk")

    split = inspect_split("train", Prefetch(Numbers(4, build), workers=2))
    armed = True
    stream = split.stream(epoch=1, seed=0)
    with (
        pytest.warns(NitroWarning, match="split `train`: nitro-data-train-prod"),
        pytest.raises(OSError, match="disk"),
    ):
        next(stream)
    threads = [t for t in threading.enumerate() if t.name.startswith("nitro-data")]
    assert all(t.daemon for t in threads)
    release.set()
    for thread in threads:
        thread.join(LONG)


def test_closing_early_joins_every_thread_and_closes_the_iterator():
    closed = threading.Event()

    def make():
        try:
            yield from numbers(1000)
        finally:
            closed.set()

    for wrap in (NoPrefetch, lambda s: s):
        closed.clear()
        split = inspect_split("train", wrap(Generating(1000, make)))
        closed.clear()
        with split.stream(epoch=1, seed=0) as stream:
            next(stream)
        assert closed.is_set()
        assert next(stream, None) is None
        stream.close()


class Handle:
    """An iterator that holds something open, and is no generator."""

    opened = closed = 0

    def __init__(self):
        type(self).opened += 1
        self.batches = numbers(100)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)

    def close(self):
        type(self).closed += 1


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
@pytest.mark.parametrize("last", [3, 99])
def test_iterators_that_hold_something_open_are_closed(wrap, last):
    class Open(Handle):
        pass

    split = inspect_split("val", wrap(Generating(100, Open)))
    assert (Open.opened, Open.closed) == (1, 1)
    with split.stream(epoch=0, seed=0) as stream:
        for item in stream:
            if item.index == last:
                break
    assert (Open.opened, Open.closed) == (2, 2)


def test_closing_leaves_no_batch_alive():
    born = []

    class Array(np.ndarray):
        pass

    def build(index):
        array = np.full(2, index).view(Array)
        born.append(weakref.ref(array))
        return {"i": array}

    split = inspect_split("train", Prefetch(Numbers(1000, build), workers=2))
    with split.stream(epoch=1, seed=0, prepare=lambda i, b: b) as stream:
        for item in stream:
            if item.index == 5:
                break
    del item, stream
    gc.collect()
    assert len(born) > 6
    assert [ref() for ref in born if ref() is not None and ref() is not split.example["i"]] == []


def test_closing_during_a_long_skip_ends_it():
    reached = threading.Event()

    def make():
        for i in range(10**9):
            if i == 100:
                reached.set()
            yield {"i": np.full(2, i)}

    split = inspect_split("train", Generating(10**9, make))
    with split.stream(epoch=1, seed=0, start=10**9 - 1):
        assert reached.wait(LONG)


def test_abandoned_stream_ends_its_threads():
    stream = inspect_split("train", Numbers(1000)).stream(epoch=1, seed=0)
    next(stream)
    threads = [t for t in threading.enumerate() if t.name.startswith("nitro-data")]
    assert threads
    del stream
    gc.collect()
    for thread in threads:
        thread.join(LONG)


def test_producer_stuck_in_the_users_code_is_named_after_a_bounded_wait(monkeypatch):
    monkeypatch.setattr(prefetch, "JOIN_SECONDS", 0.05)
    release, entered = threading.Event(), threading.Event()

    def build(index):
        if index == 2:
            entered.set()
            release.wait(LONG)

    split = inspect_split("val", Prefetch(Numbers(4, build), workers=1))
    stream = split.stream(epoch=0, seed=0)
    next(stream)
    entered.wait(LONG)
    stuck = [t for t in threading.enumerate() if t.name.startswith("nitro-data")]
    with pytest.warns(NitroWarning, match="split `val`: nitro-data-val-producer-0 did not end"):
        stream.close()
    release.set()
    for thread in stuck:
        thread.join(LONG)


def test_complete_epoch_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(indices(inspect_split("train", Numbers(20)))) == 20


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
@pytest.mark.parametrize(
    ("real", "said", "message"),
    [
        (3, 5, "ends after 3 batches in epoch 1, its length says 5"),
        (5, 3, "yields more than its 3 batches in epoch 1"),
    ],
)
def test_length_that_lies_is_an_error_with_both_numbers(wrap, real, said, message):
    split = inspect_split("train", wrap(Generating(said, lambda: numbers(real))))
    seen = []
    with split.stream(epoch=1, seed=0) as stream, pytest.raises(DataError, match=message) as caught:
        drain(stream, seen)
    assert seen == list(range(min(real, said)))
    assert "split `train`" in caught.value.where


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_source_exhausted_by_setup_is_an_empty_epoch(wrap):
    rest = list(numbers(1))
    split = inspect_split("train", wrap(Generating(1, lambda: (rest.pop() for _ in range(len(rest))))))
    with pytest.raises(DataError, match="epoch 1 is empty"), split.stream(epoch=1, seed=0) as stream:
        next(stream)


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: [1], "is a list, not a mapping"),
        (lambda: {"i": np.zeros(2)}, "dtype float64"),
        (lambda: {"i": np.zeros((2, 1), int)}, "2 dimensions"),
        (lambda: {"i": np.zeros(1, int)}, "1 samples, the first batch had 2"),
        (lambda: {"j": np.zeros(2, int)}, r"fields \['j'\]"),
    ],
)
@pytest.mark.parametrize("kind", [list, lambda batches: Generating(len(batches), lambda: iter(batches))])
def test_bad_batch_is_named_before_it_is_delivered(wrap, kind, bad, message):
    split = inspect_split("train", wrap(kind([*numbers(2), bad(), *numbers(1)])), train=True)
    seen = []
    with split.stream(epoch=1, seed=0) as stream, pytest.raises(DataError, match=message) as caught:
        drain(stream, seen)
    assert seen == [0, 1]
    assert "split `train`, batch 2" in caught.value.where


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_none_and_stop_iteration_from_batch_at_are_errors(wrap):
    def stop(index):
        if index == 1:
            raise StopIteration

    class Nones(Numbers):
        def batch_at(self, index, plan):
            return super().batch_at(index, plan) if index != 1 else None

    for source, message in ((Numbers(3, stop), "raised StopIteration"), (Nones(3), "returned None")):
        with pytest.raises(DataError, match=message) as caught:
            indices(inspect_split("train", wrap(source)))
        assert "batch 1" in caught.value.where


def test_object_field_is_refused_only_where_a_traced_hook_declares_it():
    source = [{"x": np.zeros(2), "id": np.array([{}, {}], object)}] * 2
    split = inspect_split("val", source)
    with split.stream(epoch=0, seed=0, device_fields={"x"}) as stream:
        assert len(list(stream)) == 2
    with pytest.raises(DataError, match="field `id` has dtype object"):
        split.stream(epoch=0, seed=0, device_fields={"x", "id"})


def test_short_final_batch_of_evaluation_passes():
    split = inspect_split("val", ArrayBatches({"i": np.arange(5)}, 2))
    with split.stream(epoch=0, seed=0) as stream:
        assert [len(item.host["i"]) for item in stream] == [2, 2, 1]


def test_source_is_told_the_epoch_if_it_asks():
    class Told(Generating):
        epochs = ()

        def set_epoch(self, epoch):
            self.epochs += (epoch,)

    source = Told(2, lambda: numbers(2))
    indices(inspect_split("train", source), epoch=5)
    assert source.epochs == (0, 5)


def test_iterator_state_rides_along_and_comes_back():
    class Stateful:
        skips_on_reentry = False
        given = None

        def __len__(self):
            return 4

        def iterate(self, epoch, seed, start, state):
            self.given = (epoch, seed, start, state)
            outer = self

            class Position:
                def __init__(self):
                    self.at = 0 if state is None else state["at"]

                def __iter__(self):
                    return self

                def __next__(self):
                    if self.at == len(outer):
                        raise StopIteration
                    self.at += 1
                    return {"i": np.full(2, self.at - 1)}

                def state(self):
                    return {"at": self.at}

            return Position(), start if state is not None else 0

    source = Stateful()
    split = inspect_split("train", source)
    with split.stream(epoch=1, seed=2) as stream:
        state = [item.state for item in stream][1]
    assert state == {"at": 2}
    with split.stream(epoch=1, seed=2, start=2, state=state) as stream:
        assert [item.index for item in stream] == [2, 3]
    assert source.given == (1, 2, 2, {"at": 2})


class Blocking:
    """Batches by iteration, the third of which never comes unless it is released."""

    def __init__(self):
        self.release = threading.Event()
        self.reached = threading.Event()

    def __len__(self):
        return 4

    def __iter__(self):
        for index, batch in enumerate(numbers(4)):
            if index == 2:
                self.reached.set()
                self.release.wait(LONG)
            yield batch


def waits_in_vain(stream):
    with pytest.raises(WaitEnded):
        next(stream)
    stream.close()


@pytest.mark.parametrize("prepare", [None, lambda index, batch: batch])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_hurried_consumer_gets_what_is_there_and_waits_no_longer(prepare, ahead, monkeypatch):
    monkeypatch.setattr(prefetch, "HURRIED_JOIN_SECONDS", 0.05)
    source = Blocking()
    stream = inspect_split("train", source).stream(epoch=1, seed=0, prepare=prepare, ahead=ahead)
    try:
        assert [next(stream).index, next(stream).index] == [0, 1]
        hurrying = threading.Thread(target=lambda: source.reached.wait(LONG) and stream.hurry(0.0))
        hurrying.start()
        with pytest.warns(NitroWarning, match=r"did not end within 0\.05 s"):
            waits_in_vain(stream)
        hurrying.join()
    finally:
        source.release.set()
        for thread in threading.enumerate():
            if thread.name.startswith("nitro-data"):
                thread.join(LONG)


def test_a_hurried_consumer_of_inline_batches_leaves_the_source_from_a_signal_handler():
    class Hurried(Blocking):
        def __iter__(self):
            for index, batch in enumerate(numbers(4)):
                if index == 2:
                    stream.hurry(1.0)  # with patience the source goes on
                    stream.hurry(0.0)  # as the handler of a signal would, in the middle of the source's code
                yield batch

    with inspect_split("train", NoPrefetch(Hurried())).stream(epoch=1, seed=0) as stream:
        assert [next(stream).index, next(stream).index] == [0, 1]
        stream.hurry(0.0)  # outside of the source's code there is nothing to leave
        with pytest.raises(WaitEnded):
            next(stream)


def test_the_threads_of_a_stream_hold_signals_to_the_group_back():
    def masked():
        batches = list(numbers(2))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert {signal.SIGINT, signal.SIGUSR1} <= blocked or threading.current_thread() is threading.main_thread()
        assert signal.SIGTERM not in blocked
        return iter(batches)

    assert len(indices(inspect_split("train", Generating(2, masked)))) == 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_fork_beside_jax_is_answered_with_the_setting_that_avoids_it():
    import jax

    jax.devices()  # from here on it warns of every fork

    def forking():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        warnings.warn("of the source's own", UserWarning, stacklevel=1)
        return numbers(2)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        split = inspect_split("train", Generating(2, forking)).checked_for_own_order(0)
        indices(split)
    texts = [str(one.message) for one in told]
    assert [text for text in texts if "fork" in text] == [text for text in texts if "multiprocessing_context" in text]
    assert len([text for text in texts if "split `train`" in text and "'forkserver'" in text]) == 1
    assert "of the source's own" in texts


def test_a_source_that_fails_keeps_its_warnings():
    def failing():
        warnings.warn("the disk is slow", UserWarning, stacklevel=1)
        raise OSError("gone")

    with pytest.warns(UserWarning, match="the disk is slow"), pytest.raises(OSError, match="gone"):
        inspect_split("train", Generating(2, failing))
