"""Grain datasets and loaders as data sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from nitro_cli.errors import DataError

__all__ = ["GrainIterBatches", "GrainMapBatches"]


class GrainMapBatches:
    """A batched `grain.MapDataset`: index-addressable, with Grain's own order for each epoch.

    Element `epoch * len + index` of the dataset is batch `index` of an epoch: Grain shuffles each
    pass over its dataset anew, from the dataset's own seed.

    Args:
        name: name of the split.
        dataset: the dataset, whose elements are batches.
        batches: batches of an epoch; None is the dataset's own length.

    Raises:
        DataError: the dataset repeats without end and no number of batches is given.
    """

    def __init__(self, name: str, dataset: Any, batches: int | None) -> None:
        length = len(dataset)
        if batches is None and length >= sys.maxsize:
            raise DataError(
                "the Grain dataset repeats without end",
                where=f"split `{name}`",
                why="the number of batches of an epoch fixes the schedules' horizon at setup",
                fix="leave out .repeat(): every epoch is another pass over the dataset already",
            )
        self._dataset = dataset
        self._batches = length if batches is None else batches

    def __len__(self) -> int:
        return self._batches

    def begin_epoch(self, epoch: int, seed: int) -> int:
        """Return where the epoch begins in the dataset; Grain's own seed goes before the run's."""
        return epoch * self._batches

    def batch_at(self, index: int, plan: int) -> Any:
        """Return batch `index` of the epoch that begins at element `plan`."""
        return self._dataset[plan + index]

    def __iter__(self) -> Iterator[Any]:
        return (self._dataset[index] for index in range(self._batches))


class GrainIterBatches:
    """A batched `grain.IterDataset` or a `grain.DataLoader`, entered again through its iterator's state.

    Args:
        name: name of the split.
        dataset: the dataset or loader, whose elements are batches.
        batches: batches of an epoch.

    Raises:
        DataError: no number of batches is given.
    """

    skips_on_reentry = False
    note = (
        "each epoch iterates the Grain pipeline from its beginning, in the same order; "
        "a batched grain.MapDataset has another order in each epoch"
    )

    def __init__(self, name: str, dataset: Any, batches: int | None) -> None:
        if batches is None:
            kind = type(dataset).__name__
            raise DataError(
                f"the Grain source ({kind}) has no length",
                where=f"split `{name}`",
                why="the number of batches of an epoch fixes the schedules' horizon at setup",
                fix="return the batched grain.MapDataset itself, or nitro_cli.data.WithLength(source, batches)",
            )
        self._dataset = dataset
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        """Return an iterator at batch `start` where a state is given, else at the first batch."""
        iterator = _GrainIterator(iter(self._dataset), self._batches - (0 if state is None else start))
        if state is None:
            return iterator, 0
        iterator.restore(state)
        return iterator, start


class _GrainIterator:
    """Grain's iterator with a JSON-ready state, ended after a number of batches."""

    def __init__(self, iterator: Any, left: int) -> None:
        self._iterator = iterator
        self._left = left

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        batch = next(self._iterator)
        self._left -= 1
        return batch

    def state(self) -> dict[str, Any]:
        state = self._iterator.get_state()
        # Loaders give bytes that hold JSON, datasets a dict.
        return {"text": state.decode()} if isinstance(state, bytes) else {"state": state}

    def restore(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(state["text"].encode() if "text" in state else state["state"])

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if callable(close):
            close()
