import random
import signal
import sys
import threading

import numpy as np
import pytest

from nitro_cli.data import NoPrefetch, WithLength, inspect_split
from nitro_cli.errors import DataError

torch = pytest.importorskip("torch", reason="the torch adapter's tests need torch, which is not installed")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402


class Samples(Dataset):
    """Sample i is i, with the random numbers that a dataset may draw."""

    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        noise = (float(torch.rand(())), random.random(), float(np.random.random()))
        return {"i": index, "noise": torch.tensor(noise), "id": f"s{index}"}


class Pairs(Samples):
    def __getitem__(self, index):
        return torch.zeros(3), index


class Streamed(IterableDataset):
    def __init__(self, n=None):
        self.n = n
        if n is not None:
            self.__class__ = StreamedWithLength

    def __iter__(self):
        return ({"i": i} for i in range(10))


class StreamedWithLength(Streamed):
    def __len__(self):
        return 10


def run(loader, *, epoch=1, seed=0, start=0, wrap=lambda s: s):
    with inspect_split("train", wrap(loader)).stream(epoch=epoch, seed=seed, start=start) as stream:
        return [item.host for item in stream]


def ids(batches):
    return [batch["i"].tolist() for batch in batches]


def assert_equal(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_tensors_become_arrays_and_text_too():
    split = inspect_split("val", DataLoader(Samples(), batch_size=4))
    assert {name: str(spec.dtype) for name, spec in split.fields.items()} == {
        "i": "int64",
        "noise": "float32",
        "id": "<U2",
    }
    assert split.fields["noise"].shape == (3,)
    assert (split.batches, split.batch_size) == (3, 4)
    assert not split.prefetch.skips_on_reentry


def test_unshuffled_order_is_the_loaders_own():
    loader = DataLoader(Samples(), batch_size=4)
    assert ids(run(loader)) == [batch["i"].tolist() for batch in loader]


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_shuffles_follow_seed_and_epoch_and_reenter_exactly(wrap):
    loader = DataLoader(Samples(), batch_size=4, shuffle=True)
    whole = run(loader, epoch=2, seed=5, wrap=wrap)
    assert sorted(i for batch in ids(whole) for i in batch) == list(range(10))
    torch.rand(7)
    assert_equal(run(loader, epoch=2, seed=5, wrap=wrap), whole)
    assert_equal(run(loader, epoch=2, seed=5, start=1, wrap=wrap), whole[1:])
    assert ids(run(loader, epoch=3, seed=5)) != ids(whole) != ids(run(loader, epoch=2, seed=6))


def test_own_generator_goes_before_the_runs_seed_and_keeps_its_state():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Samples(), batch_size=5, shuffle=True, generator=generator)
    before = generator.get_state()
    first = ids(run(loader, seed=1))
    assert ids(run(loader, seed=2)) == first
    assert ids(run(loader, seed=2, epoch=2)) != first
    assert torch.equal(generator.get_state(), before)
    assert generator.initial_seed() == 3


def test_global_generators_are_left_as_they_were():
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    run(DataLoader(Samples(), batch_size=5, shuffle=True))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]


def test_augmentation_differs_by_batch_and_epoch():
    loader = DataLoader(Samples(), batch_size=5)
    noise = [batch["noise"][0].tolist() for epoch in (1, 2) for batch in run(loader, epoch=epoch)]
    for column in zip(*noise, strict=True):
        assert len(set(column)) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="the test forks its workers")
def test_worker_processes_give_the_same_batches_and_end_with_the_stream():
    inline = run(DataLoader(Samples(), batch_size=2, shuffle=True), seed=4)
    loader = DataLoader(Samples(), batch_size=2, shuffle=True, num_workers=2, multiprocessing_context="fork")
    assert_equal(run(loader, seed=4), inline)
    with inspect_split("train", loader).stream(epoch=1, seed=4) as stream:
        next(stream)
    assert torch.multiprocessing.active_children() == []
    assert not [t for t in threading.enumerate() if t.name.startswith("nitro-data")]


class SignalHandlers(Samples):
    def __getitem__(self, index):
        return {"i": index, "default": int(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)}


@pytest.mark.skipif(sys.platform == "win32", reason="the test forks its workers")
def test_worker_processes_do_not_inherit_the_runs_signal_handlers():
    kept = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        loader = DataLoader(SignalHandlers(), batch_size=5, num_workers=1, multiprocessing_context="fork")
        assert all(batch["default"].all() for batch in run(loader))
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_tuples_are_refused_with_the_fix():
    with pytest.raises(DataError, match="yields a list of 2 entries, which have no names") as caught:
        inspect_split("train", DataLoader(Pairs(), batch_size=5))
    assert "collate_fn" in caught.value.fix
    named = DataLoader(Pairs(), batch_size=5, collate_fn=lambda rows: {"y": torch.tensor([y for _, y in rows])})
    assert inspect_split("train", named, train=True).batch_size == 5


def test_partial_batches_are_refused_in_training_with_numbers():
    with pytest.raises(DataError, match="last of 3 batches has 2 samples, the first has 4"):
        inspect_split("train", DataLoader(Samples(), batch_size=4), train=True)
    assert inspect_split("train", DataLoader(Samples(), batch_size=4, drop_last=True), train=True).batches == 2


def test_batches_of_the_dataset_itself_pass():
    class Whole(Samples):
        def __getitem__(self, index):
            return {"i": torch.arange(3) + 3 * index}

    loader = DataLoader(Whole(4), batch_size=None)
    assert ids(run(loader, start=1)) == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_iterable_dataset_is_read_in_order_and_skipped_on_reentry():
    with pytest.raises(DataError, match="has no length") as caught:
        inspect_split("train", DataLoader(Streamed(), batch_size=2))
    assert "WithLength(loader, batches)" in caught.value.fix
    for source in (WithLength(DataLoader(Streamed(), batch_size=2), 5), DataLoader(Streamed(10), batch_size=2)):
        assert inspect_split("train", source).prefetch.skips_on_reentry
        assert ids(run(source, start=3)) == [[6, 7], [8, 9]]


def test_tensor_without_a_numpy_form_is_named():
    class Half(Samples):
        def __getitem__(self, index):
            return {"x": torch.zeros(2, dtype=torch.bfloat16)}

    with pytest.raises(DataError, match=r"torch.bfloat16 has no numpy form") as caught:
        inspect_split("train", DataLoader(Half(), batch_size=5))
    assert "field `x`" in caught.value.where
