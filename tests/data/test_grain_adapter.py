import json

import numpy as np
import pytest

from nitro_cli.data import NoPrefetch, Prefetch, WithLength, check_batch_at, inspect_split
from nitro_cli.errors import DataError

grain = pytest.importorskip("grain", reason="the grain adapter's tests need grain, which is not installed")


def samples(n=10):
    dataset = grain.MapDataset.source(np.arange(n)).seed(3).shuffle()
    return dataset.map(lambda i: {"i": np.asarray(i), "x": np.full(2, i, np.float32)})


class Source:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"i": np.asarray(index)}


def loader():
    sampler = grain.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=0)
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=[grain.transforms.Batch(2)])


def ids(source, *, epoch=1, start=0, state=None):
    with inspect_split("train", source).stream(epoch=epoch, seed=0, start=start, state=state) as stream:
        return [item.host["i"].tolist() for item in stream]


@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch, lambda s: Prefetch(s, workers=3)])
def test_map_dataset_is_addressed_by_batch_with_grains_order_of_each_epoch(wrap):
    dataset = samples().batch(4)
    # Grain's own repetition is the independent source of each epoch's order.
    repeated = [batch["i"].tolist() for batch in samples().batch(4).repeat(4)]
    for epoch in range(4):
        assert ids(wrap(dataset), epoch=epoch) == repeated[3 * epoch : 3 * epoch + 3]
    assert ids(wrap(dataset), epoch=2, start=2) == repeated[8:9]
    assert sorted(i for batch in repeated[3:6] for i in batch) == list(range(10))


def test_map_dataset_gets_several_producers():
    plan = inspect_split("train", Prefetch(samples().batch(5), workers=3), train=True).prefetch
    assert (plan.path, plan.workers, plan.skips_on_reentry) == ("indexed", 3, False)


def test_partial_batch_is_refused_in_training():
    with pytest.raises(DataError, match="last of 3 batches has 2 samples"):
        inspect_split("train", samples().batch(4), train=True)


def test_endless_dataset_is_refused_with_the_fix():
    with pytest.raises(DataError, match="repeats without end") as caught:
        inspect_split("train", samples().batch(5).repeat())
    assert ".repeat()" in caught.value.fix


def test_filtered_element_is_named():
    dataset = samples().batch(5).map(lambda batch: batch if batch["i"][0] == 4 else None)
    with pytest.raises(DataError, match="returned None"):
        ids(dataset)


@pytest.mark.parametrize("make", [lambda: samples().to_iter_dataset().batch(2), loader])
@pytest.mark.parametrize("wrap", [lambda s: s, NoPrefetch])
def test_iterating_pipelines_are_entered_again_through_their_state(make, wrap):
    source = wrap(WithLength(make(), 5))
    split = inspect_split("train", source, train=True)
    assert not split.prefetch.skips_on_reentry
    with split.stream(epoch=1, seed=0) as stream:
        items = list(stream)
    whole = [item.host["i"].tolist() for item in items]
    assert whole == [batch["i"].tolist() for batch in make()]
    state = json.loads(json.dumps(items[2].state))
    assert ids(source, start=3, state=state) == whole[3:]
    assert ids(source, start=3) == whole[3:]


def test_state_is_restored_without_reading_the_batches_before():
    read = []
    dataset = grain.MapDataset.source(np.arange(10)).map(lambda i: read.append(int(i)) or {"i": np.asarray(i)})
    source = WithLength(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(2), 5)
    split = inspect_split("train", source)
    with split.stream(epoch=1, seed=0) as stream:
        state = [item.state for item in stream][3]
    read.clear()
    assert ids(source, start=4, state=state) == [[8, 9]]
    assert [i for i in read if i > 1] == [8, 9]  # 0 and 1 are the batch that setup draws


@pytest.mark.parametrize("make", [lambda: samples().to_iter_dataset().batch(2), loader])
def test_pipeline_without_length_is_refused_with_the_fix(make):
    with pytest.raises(DataError, match="has no length") as caught:
        inspect_split("train", make())
    assert "WithLength(source, batches)" in caught.value.fix


def test_length_may_cut_an_endless_pipeline_and_may_not_exceed_a_finite_one():
    endless = samples().repeat().to_iter_dataset().batch(2)
    assert len(ids(WithLength(endless, 3))) == 3
    with pytest.raises(DataError, match="ends after 5 batches in epoch 1, its length says 6"):
        ids(WithLength(samples().to_iter_dataset().batch(2), 6))


def test_adapted_dataset_agrees_with_its_iteration():
    from nitro_cli.data import adapt

    check_batch_at(adapt("train", samples().batch(4)), values=True)
