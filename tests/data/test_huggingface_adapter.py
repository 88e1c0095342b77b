import numpy as np
import pytest

from nitro_cli.data import ArrayBatches, HuggingFaceBatches, WithLength, check_batch_at, inspect_split
from nitro_cli.errors import DataError

datasets = pytest.importorskip(
    "datasets", reason="the Hugging Face adapter's tests need the package datasets, which is not installed"
)


def rows(n=10):
    return datasets.Dataset.from_dict(
        {"i": list(range(n)), "x": [[float(i), 1.0] for i in range(n)], "text": [f"row {i}" for i in range(n)]}
    )


def ids(source, **kw):
    with inspect_split("train", source).stream(**({"epoch": 1, "seed": 4} | kw)) as stream:
        return [item.host["i"].tolist() for item in stream]


def test_rows_alone_are_refused_with_the_fix():
    with pytest.raises(DataError, match="10 rows, not of batches") as caught:
        inspect_split("train", rows())
    assert "HuggingFaceBatches(dataset, batch_size" in caught.value.fix


def test_batches_have_the_order_of_array_batches():
    arrays = ArrayBatches({"i": np.arange(10)}, 4, shuffle=True)
    source = HuggingFaceBatches(rows(), 4, shuffle=True)
    assert ids(source) == ids(arrays)
    assert ids(source, epoch=2, start=1) == ids(arrays, epoch=2, start=1)
    assert ids(HuggingFaceBatches(rows(), 4, shuffle=True, seed=9)) == ids(arrays, seed=9)
    check_batch_at(source, values=True)


def test_columns_become_arrays():
    split = inspect_split("val", HuggingFaceBatches(rows(), 4))
    assert split.prefetch.path == "indexed"
    assert split.fields["x"].shape == (2,)
    assert split.fields["text"].dtype.kind == "U"
    np.testing.assert_allclose(split.example["x"], [[0, 1], [1, 1], [2, 1], [3, 1]])


def test_partial_batch_is_refused_in_training():
    with pytest.raises(DataError, match="last of 3 batches has 2 samples"):
        inspect_split("train", HuggingFaceBatches(rows(), 4), train=True)
    assert inspect_split("train", HuggingFaceBatches(rows(), 4, drop_last=True), train=True).batches == 2


def test_transform_draws_from_the_batchs_own_generator():
    def noise(batch, rng):
        return {"i": batch["i"] + rng.integers(100)}

    source = HuggingFaceBatches(rows(), 5, transform=noise)
    assert ids(source) == ids(source)
    assert ids(source) != ids(source, epoch=2)


def test_streamed_dataset_needs_a_length():
    streamed = rows().to_iterable_dataset().with_format("numpy").batch(5)
    with pytest.raises(DataError, match="has no length"):
        inspect_split("train", streamed)
    assert ids(WithLength(streamed, 2), start=1) == [[5, 6, 7, 8, 9]]
    with pytest.raises(DataError, match="no map-style"):
        HuggingFaceBatches(streamed, 5)


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_wrong_batch_size_is_refused(size):
    with pytest.raises(DataError, match="batch_size"):
        HuggingFaceBatches(rows(), size)
