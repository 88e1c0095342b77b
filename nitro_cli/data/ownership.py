"""Batches that are nitro's own: a source may refill its arrays as soon as it is asked for the next batch.

A batch waits in queues, is read by the device while the next one is built (XLA:CPU reads host memory where it is),
and is looked at once more by metrics on the host and by the replay of a divergence. So its arrays are copied as it
comes, unless the source is known to build every batch in memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.data.buffers import BatchBuffers

__all__ = ["BatchCopies", "owned_batch"]


class BatchCopies:
    """Copies of the batches of one pass, in memory that is used again; safe for several threads."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, tuple[int, ...], Any], BatchBuffers] = {}

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch in arrays that no one else holds."""
        return {name: self._copied(name, array) for name, array in batch.items()}

    def _copied(self, name: str, array: np.ndarray) -> np.ndarray:
        if type(array) is not np.ndarray or array.dtype.hasobject:
            return array.copy()  # memory as a buffer gives it holds neither a mask nor references
        key = name, array.shape, array.dtype
        buffers = self._buffers.get(key)
        if buffers is None:
            buffers = self._buffers.setdefault(key, BatchBuffers(array.shape, array.dtype))
        if not buffers.worthwhile:
            return array.copy()
        own = buffers.take()
        np.copyto(own, array)
        return own


def owned_batch(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch in arrays that no one else holds.

    Args:
        batch: mapping from field name to host array.
    """
    return {name: array.copy() for name, array in batch.items()}
