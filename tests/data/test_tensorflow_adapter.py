import numpy as np
import pytest

from nitro_cli.data import WithLength, inspect_split
from nitro_cli.errors import DataError

tf = pytest.importorskip("tensorflow", reason="the tf.data adapter's tests need tensorflow, which is not installed")


def dataset(n=10, size=5):
    columns = {"i": np.arange(n), "text": [f"row {i}" for i in range(n)]}
    return tf.data.Dataset.from_tensor_slices(columns).batch(size)


def ids(source, **kw):
    with inspect_split("train", source).stream(**({"epoch": 1, "seed": 4} | kw)) as stream:
        return [item.host["i"].tolist() for item in stream]


def test_tensors_become_arrays_in_order_and_reentry_skips():
    split = inspect_split("train", dataset(), train=True)
    assert (split.batches, split.batch_size, split.prefetch.skips_on_reentry) == (2, 5, True)
    assert ids(dataset()) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert ids(dataset(), start=1) == [[5, 6, 7, 8, 9]]


def test_text_is_refused_on_the_device_only():
    split = inspect_split("val", dataset())
    with pytest.raises(DataError, match="field `text` has dtype object"):
        split.stream(epoch=0, seed=0, device_fields={"text"})


def test_unknown_and_endless_cardinality_need_a_length():
    for endless in (dataset().repeat(), dataset().filter(lambda batch: True)):
        with pytest.raises(DataError, match="does not know its number of batches") as caught:
            inspect_split("train", endless)
        assert "WithLength(dataset, batches)" in caught.value.fix
    assert len(ids(WithLength(dataset().repeat(), 3))) == 3


def test_tuples_need_names():
    pairs = tf.data.Dataset.from_tensor_slices((np.zeros(4), np.ones(4))).batch(2)
    with pytest.raises(DataError, match="is a tuple, not a mapping"):
        inspect_split("train", pairs)
