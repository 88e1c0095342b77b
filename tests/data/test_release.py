import warnings

import numpy as np
import pytest

from nitro_cli.data import NoPrefetch, Prefetch, inspect_split, release_splits
from nitro_cli.errors import NitroWarning


class Source(list):
    def __init__(self, error=None):
        super().__init__([{"x": np.zeros(2)}])
        self.error = error
        self.released = 0

    def release(self):
        self.released += 1
        if self.error:
            raise self.error


def test_every_source_is_released_once_and_an_error_is_a_warning():
    bad, good = Source(OSError("server gone")), Source()
    splits = {
        "train": inspect_split("train", bad),
        "val": inspect_split("val", Prefetch(good)),
        "test": inspect_split("test", NoPrefetch(good)),
    }
    with pytest.warns(NitroWarning, match=r"split `train`: release\(\) .* OSError: server gone"):
        release_splits(splits)
    assert (bad.released, good.released) == (1, 1)


def test_sources_without_release_are_left_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        release_splits([inspect_split("val", [{"x": np.zeros(2)}])])
