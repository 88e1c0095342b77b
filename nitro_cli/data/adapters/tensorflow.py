"""`tf.data` datasets as data sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nitro_cli.errors import DataError

__all__ = ["TensorFlowBatches"]


class TensorFlowBatches:
    """A batched `tf.data.Dataset`, read through its numpy iterator.

    Args:
        name: name of the split.
        dataset: the dataset, whose elements are batches: dicts of tensors.
        batches: batches of an epoch; None is the dataset's own cardinality.

    Raises:
        DataError: the dataset does not know its cardinality, or has none, and `batches` is not given.
    """

    skips_on_reentry = True
    note = (
        "tf.data iterates only: one producer, and a mid-epoch resume skips batches; "
        "its shuffles repeat only with reshuffle_each_iteration=False"
    )

    def __init__(self, name: str, dataset: Any, batches: int | None) -> None:
        if batches is None:
            try:
                batches = len(dataset)
            except TypeError as error:
                raise DataError(
                    "the tf.data dataset does not know its number of batches",
                    where=f"split `{name}`",
                    why=str(error),
                    fix="leave out .repeat(), state it with tf.data.experimental.assert_cardinality, "
                    "or return nitro_cli.data.WithLength(dataset, batches)",
                ) from error
            self._cut = False
        else:
            self._cut = True
        self._dataset = dataset
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        """Return an iterator at the epoch's first batch."""
        dataset = self._dataset.take(self._batches) if self._cut else self._dataset
        return iter(dataset.as_numpy_iterator()), 0
