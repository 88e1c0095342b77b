"""Hugging Face datasets as data sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from nitro_cli.data.order import batch_rng, epoch_order, order_in_words
from nitro_cli.errors import DataError

__all__ = ["HuggingFaceBatches", "refuse_rows"]


def refuse_rows(name: str, dataset: Any) -> NoReturn:
    """Refuse a dataset of rows, which says nothing of batches.

    Raises:
        DataError: always.
    """
    raise DataError(
        f"the split is a Hugging Face dataset of {len(dataset)} rows, not of batches",
        where=f"split `{name}`",
        fix="return nitro_cli.data.HuggingFaceBatches(dataset, batch_size, shuffle=..., drop_last=...)",
    )


class HuggingFaceBatches:
    """A data source over a Hugging Face `datasets.Dataset`, gathering whole batches of rows.

    The dataset's own numpy formatting turns columns into arrays; order and generators follow the rules
    of `ArrayBatches`.

    Args:
        dataset: a map-style dataset; its transforms (`with_transform`, `set_format`) hold.
        batch_size: rows per batch.
        shuffle: whether each epoch has a new random order.
        drop_last: whether a partial last batch is left out; training needs it left out.
        seed: seed of the order; None follows the run's `seed`.
        transform: `transform(batch, rng) -> batch`, for random augmentation.

    Raises:
        DataError: `batch_size` is not a positive whole number, or the object is no dataset of rows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        transform: Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]] | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(f"`batch_size` is {batch_size!r}", where="HuggingFaceBatches(batch_size=)")
        if not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
            raise DataError(
                f"{type(dataset).__name__} is no map-style Hugging Face dataset",
                where="HuggingFaceBatches(dataset)",
                fix="for a streamed one return "
                "nitro_cli.data.WithLength(dataset.with_format('numpy').batch(batch_size), batches)",
            )
        self._dataset = dataset if getattr(dataset, "format", {}).get("type") else dataset.with_format("numpy")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.transform = transform

    def __len__(self) -> int:
        full, rest = divmod(len(self._dataset), self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    @property
    def samples(self) -> int:
        """Rows of the dataset."""
        return len(self._dataset)

    @property
    def order(self) -> str:
        """What the order of an epoch is a function of, in words."""
        return order_in_words(self.shuffle, self.seed)

    @property
    def last_batch_size(self) -> int:
        """Number of rows in the last batch of an epoch."""
        rest = len(self._dataset) % self.batch_size
        return self.batch_size if self.drop_last or rest == 0 else rest

    def begin_epoch(self, epoch: int, seed: int | None = None) -> tuple[int, int, np.ndarray]:
        """Return the plan of an epoch: seed, epoch and the order of rows."""
        held = self.seed if self.seed is not None else (0 if seed is None else seed)
        return held, epoch, epoch_order(len(self._dataset), seed=held, epoch=epoch, shuffle=self.shuffle)

    def batch_at(self, index: int, plan: tuple[int, int, np.ndarray]) -> Mapping[str, Any]:
        """Return batch `index` (from 0) of the epoch that `plan` describes."""
        seed, epoch, order = plan
        rows = order[index * self.batch_size : (index + 1) * self.batch_size]
        batch = {name: _as_array(value) for name, value in self._dataset[rows].items()}
        if self.transform is None:
            return batch
        return self.transform(batch, batch_rng(seed=seed, epoch=epoch, index=index))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        plan = self.begin_epoch(0)
        return (self.batch_at(index, plan) for index in range(len(self)))


def _as_array(value: Any) -> Any:
    # Text columns come as lists of str; ragged columns stay what they are and are named by the batch check.
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return np.array(value)
    return value
