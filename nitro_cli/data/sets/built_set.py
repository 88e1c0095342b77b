"""What a data set built, and what it says of it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.experiment import Declared
from nitro_cli.text.canonical import canonical

__all__ = ["BuiltSet", "content_of_arrays"]

_PART = 2**24


class BuiltSet(dict[str, Any]):
    """Sources by split, as `build_data` returns them, with what follows from the content.

    Attributes:
        declared: what the set tells the other parts.
        content: the digest of the whole content, before any limit.
        told: what the setup report says of it beside, by name.
        kept: files that a run keeps, by name.
    """

    def __init__(
        self, sources: Mapping[str, Any], declared: Declared, content: str, told: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(sources)
        self.declared = declared
        self.content = content
        self.told = dict(told or {})
        self.kept: dict[str, bytes] = {}


def content_of_arrays(arrays: Mapping[str, Any]) -> str:
    """`sha256:<hex>` over name, dtype, shape and little-endian bytes of arrays, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        total.update(canonical([name, array.dtype.name, list(array.shape)]) + b"\n")
        rows = max(1, _PART * len(array) // max(1, array.nbytes)) if array.ndim else 1
        big = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
        for start in range(0, len(array), rows):
            part = array[start : start + rows]
            total.update((part.byteswap() if big else part).tobytes())
    return f"sha256:{total.hexdigest()}"
