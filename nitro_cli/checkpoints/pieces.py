"""Arrays that several processes hold together: the pieces of one process, and what makes pieces a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ArrayPieces", "tiling_problem"]


@dataclass(frozen=True, slots=True)
class ArrayPieces:
    """An array of which this process writes some pieces and other processes the rest.

    Attributes:
        shape, dtype: of the whole array.
        pieces: index of a piece's first element to the piece, on the host; all pieces have one shape.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Mapping[tuple[int, ...], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


def tiling_problem(shape: Sequence[int], pieces: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str | None:
    """Why pieces of one shape do not tile an array, or None where each element lies in exactly one piece.

    Args:
        shape: of the array; no length is zero.
        pieces: start and shape of each.
    """
    if not pieces:
        return "there are none"
    tile = tuple(pieces[0][1])
    starts = {tuple(start) for start, _ in pieces}
    if any(tuple(piece) != tile for _, piece in pieces):
        return "they have different shapes"
    if len(tile) != len(shape) or any(length < 1 for length in tile):
        return f"pieces of shape {list(tile)} do not fit an array of shape {list(shape)}"
    for start in starts:
        axes = zip(start, tile, shape, strict=False)
        if len(start) != len(shape) or any(a < 0 or a % n or a + n > length for a, n, length in axes):
            return f"one of shape {list(tile)} at {list(start)} does not fit an array of shape {list(shape)}"
    if len(starts) != len(pieces):
        return "two of them are the same"
    there, whole = len(pieces) * math.prod(tile), math.prod(shape)
    return None if there == whole else f"they hold {there} of its {whole} elements"
