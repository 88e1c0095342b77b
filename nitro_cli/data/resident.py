"""Arrays small enough to live on the device: the epoch is then a table of indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.data.device_values import value_error
from nitro_cli.experiment import first_lost

__all__ = ["RESIDENT_LIMIT", "ResidentArrays"]

RESIDENT_LIMIT = 256 * 2**20
"""Bytes up to which arrays are kept on the device without being asked for."""


@dataclass(frozen=True)
class ResidentArrays:
    """The arrays of a split that stay on the device, and which samples form each batch.

    Args:
        arrays: whole host arrays by field, sample dimension first; read-only. They are the source's own mapping.
        batch_size: samples per batch.
        sizes: number of real samples in each batch; only the last that has any may be below `batch_size`.
        order: epoch and seed of the run to the order of all samples of that epoch.
    """

    arrays: dict[str, np.ndarray]
    batch_size: int
    sizes: tuple[int, ...]
    order: Callable[[int, int], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self.arrays.values())

    def share(self, name: str, placed: np.ndarray) -> None:
        """Let a field be what a device that is the host holds, so that the source does not hold it a second time.

        Args:
            name: the field.
            placed: the device's memory as an array. One of another dtype is not the field, and an array that lies in a
                file holds no memory: those stay.
        """
        held = self.arrays[name]
        if placed.dtype == held.dtype and not _lies_in_file(held):
            self.arrays[name] = placed

    def check_values(self, split: str, narrowed: Mapping[str, np.dtype[Any]], *, epoch: int, seed: int) -> None:
        """Refuse arrays with a number that the device would change into another.

        Args:
            split: name of the split.
            narrowed: the fields to look at, with the dtype they have on the device.
            epoch: epoch whose batches are named.
            seed: seed of the run.

        Raises:
            DataError: a number does not fit; split, batch, row, field and value are named.
        """
        for name, dtype in narrowed.items():
            array = self.arrays[name]
            at = first_lost(array, dtype)
            if at is None:
                continue
            where = f"{self.place(split, at[0], epoch=epoch, seed=seed)}, field `{name}`"
            raise value_error(where, name, array[at], array.dtype, dtype)

    def place(self, split: str, row: int, *, epoch: int, seed: int) -> str:
        """Where a row of the arrays is met: the split, the batch of an epoch, and the row; arguments as above."""
        batches = np.argwhere(self.indices(epoch, seed) == row)
        batch = f"batch {batches[0][0]} of epoch {epoch}" if len(batches) else f"in no batch of epoch {epoch}"
        return f"split `{split}`, {batch}, row {row} of the arrays"

    def indices(self, epoch: int, seed: int) -> np.ndarray:
        """Return the samples of each batch of an epoch, as the streamed split would gather them.

        Args:
            epoch: epoch from 1; 0 for an evaluation pass.
            seed: seed of the run; a seed of the source itself goes before it.

        Returns:
            int32 array of shape (batches, batch_size); what is short repeats the last index.
        """
        total = sum(self.sizes)
        table = np.empty(len(self.sizes) * self.batch_size, np.int32)
        order = self.order(epoch, seed)[:total]
        table[:total] = order
        table[total:] = order[-1]
        return table.reshape(len(self.sizes), self.batch_size)


def _lies_in_file(array: np.ndarray) -> bool:
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return base is not None
