"""MNIST, from the files that ship with nitro or from a folder with the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nitro_cli.data.dist import Dist
from nitro_cli.data.sets.built_set import BuiltSet, content_of_arrays
from nitro_cli.data.sets.data_set import DataSet, register_data
from nitro_cli.data.sets.idx import read_idx
from nitro_cli.data.splits import SplitPlan
from nitro_cli.errors import DataError
from nitro_cli.experiment import Declared

__all__ = ["MNIST_FILES", "Mnist"]

MNIST_FILES = Path(__file__).parent / "mnist_files"
"""The folder with the four IDX files that ship with nitro."""

_VALIDATION = 5_000
_CLASSES = 10


@register_data("mnist")
class Mnist(DataSet):
    """Handwritten digits: `image` uint8 (28, 28, 1), `label` int32 of ten classes.

    The last 5,000 of the 60,000 training images validate; the 10,000 test images test.
    """

    folder: Path | None = None
    """A folder with the four IDX files; unset, those that ship with nitro."""

    def build(self, dist: Dist, split: SplitPlan | None, seed: int) -> BuiltSet:
        """Three splits; arguments as of `DataSet.build`.

        Raises:
            ConfigError: there is a split plan.
            NotFoundError, IntegrityError: a file is missing or damaged.
            DataError: files are not of one set.
        """
        self.refuse_split(split)
        train, test = self._loaded("train"), self._loaded("t10k")
        cut = len(train["label"]) - _VALIDATION
        if cut <= 0:
            raise DataError(
                f"{len(train['label'])} training images, of which {_VALIDATION} are for validation",
                where=str(self.folder or MNIST_FILES),
            )
        splits = {
            "train": {name: array[:cut] for name, array in train.items()},
            "val": {name: array[cut:] for name, array in train.items()},
            "test": test,
        }
        labels = tuple(map(str, range(_CLASSES)))
        declared = Declared(inputs=("image",), target="label", labels=labels, num_classes=_CLASSES)
        files = {f"train/{name}": array for name, array in train.items()}
        content = content_of_arrays(files | {f"test/{name}": array for name, array in test.items()})
        return self.batched(splits, declared, content)

    def _loaded(self, name: str) -> dict[str, np.ndarray]:
        folder = self.folder or MNIST_FILES
        images = read_idx(folder / f"{name}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz").astype(np.int32)
        if images.ndim != 3 or labels.shape != (len(images),) or labels.max(initial=0) >= _CLASSES:
            raise DataError(
                f"images {list(images.shape)} and labels {list(labels.shape)} up to {labels.max(initial=0)} are not of "
                "one set of ten classes",
                where=f"{folder}, {name}",
            )
        return {"image": images[..., None], "label": labels}
