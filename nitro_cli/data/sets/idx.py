"""Reading the IDX files that MNIST comes in.

The format: two zero bytes, a byte for the element type, a byte for the number of axes, each axis length as a big-endian
32-bit integer, then the elements in C order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from nitro_cli.errors import IntegrityError, NotFoundError

__all__ = ["read_idx"]

UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """Read a gzip-compressed IDX file of unsigned bytes.

    Args:
        path: the file.

    Returns:
        A uint8 array of the shape that the file's header gives.

    Raises:
        NotFoundError: there is no such file.
        IntegrityError: the file is truncated, not an IDX file, or holds another element type.
    """
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except FileNotFoundError:
        raise NotFoundError(
            f"the data file {path.name} is missing",
            where=str(path.parent),
            fix="name the folder that holds the four MNIST files",
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise IntegrityError(f"{path.name} is damaged", where=str(path), why=str(error)) from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE:
        raise IntegrityError(f"{path.name} is no IDX file of unsigned bytes", where=str(path))
    axes = raw[3]
    header = 4 + 4 * axes
    shape = tuple(int(n) for n in np.frombuffer(raw[4:header], dtype=">u4"))
    if len(raw) != header + math.prod(shape):
        raise IntegrityError(
            f"{path.name} holds {len(raw) - header} bytes, its header says {math.prod(shape)}", where=str(path)
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
