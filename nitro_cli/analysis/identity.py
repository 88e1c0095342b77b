"""Which weights and which data predictions are of: digests of their bytes, the same on every machine."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nitro_cli.text.canonical import canonical

__all__ = ["array_identity", "data_identity", "model_id"]

_PART = 1 << 24


def model_id(leaves: Iterable[tuple[str, Any]]) -> str:
    """The digest of a model's weights.

    Args:
        leaves: the path of every array that a prediction reads, and the array.

    Returns:
        `sha256:<hex>` over path, dtype, shape and little-endian bytes of each, in the order of the paths.
    """
    return _digest(sorted(leaves, key=lambda leaf: leaf[0]))


def array_identity(array: np.ndarray) -> str:
    """`sha256:<hex>` over dtype, shape and little-endian bytes of an array."""
    return _digest([("", array)])


def data_identity(arrays: Mapping[str, np.ndarray]) -> str:
    """`sha256:<hex>` over name, dtype, shape and little-endian bytes of arrays, in the order of their names."""
    return _digest(sorted(arrays.items()))


def _digest(leaves: Iterable[tuple[str, Any]]) -> str:
    total = hashlib.sha256()
    for path, leaf in leaves:
        array = np.asarray(leaf)
        total.update(canonical([path, array.dtype.name, list(array.shape)]) + b"\n")
        flat = np.ascontiguousarray(array).reshape(-1)
        step = max(1, _PART // max(1, array.dtype.itemsize))
        for start in range(0, len(flat), step):
            total.update(_little_endian(flat[start : start + step]))
    return f"sha256:{total.hexdigest()}"


def _little_endian(part: np.ndarray) -> bytes:
    big = part.dtype.byteorder == ">" or (part.dtype.byteorder == "=" and sys.byteorder == "big")
    return (part.byteswap() if big else part).tobytes()
