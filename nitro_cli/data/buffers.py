"""Memory for gathered batches, used again as soon as nobody looks at it any more.

A fresh array of a few hundred kilobytes costs more in page faults than the gather into it. A buffer is
free again when its reference count says that no array, view, or device array over it is left: all of
them hold a reference. Buffers start at a cache line, so that XLA:CPU reads them in place.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np

__all__ = ["BatchBuffers"]

_Entry = tuple[np.ndarray, int]

_ALIGNMENT = 64
_SMALL = 16 * 1024
_PROBES = 8
_MOST = 64


class BatchBuffers:
    """Buffers of one field during one epoch; safe for several threads.

    Args:
        shape: shape of a full batch.
        dtype: dtype of the field.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        self._bytes = max(int(np.prod(shape)) * dtype.itemsize, 1) + _ALIGNMENT
        self._pool: deque[_Entry] = deque()

    @property
    def worthwhile(self) -> bool:
        """Whether batches are so large that a buffer costs less than fresh memory."""
        return self._bytes >= _SMALL

    def take(self) -> np.ndarray:
        """Return an uninitialised array of the batch's shape, that no one else holds."""
        entry = self._unused()
        if entry is None:
            raw = np.empty(self._bytes, np.uint8)
            entry = (raw, -raw.ctypes.data % _ALIGNMENT)
        array: np.ndarray = np.ndarray(self._shape, self._dtype, buffer=entry[0], offset=entry[1])
        if len(self._pool) < _MOST:
            # After the array exists: a thread that pops the entry sees the array's reference.
            self._pool.append(entry)
        return array

    def _unused(self) -> _Entry | None:
        pool = self._pool
        for _ in range(min(len(pool), _PROBES)):
            try:
                entry = pool.popleft()
            except IndexError:
                return None
            if sys.getrefcount(entry[0]) <= _UNUSED:
                return entry
            pool.append(entry)
        return None


def _count_of_unused() -> int:
    # Interpreters differ in which references count, so the same expression measures it once.
    pool: deque[_Entry] = deque([(np.empty(1, np.uint8), 0)])
    entry = pool.popleft()
    return sys.getrefcount(entry[0])


_UNUSED = _count_of_unused()
