"""What becomes of 64-bit numbers on the way to a device: 32-bit ones, unless JAX's 64-bit mode is on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["first_lost", "narrowed_dtype", "x64_enabled"]

_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def x64_enabled() -> bool:
    """Whether JAX's 64-bit mode is on in this thread; before JAX is imported, whether its variable asks for it."""
    jax = sys.modules.get("jax")
    config = getattr(jax, "config", None)
    if config is not None:
        return bool(config.jax_enable_x64)
    return os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "y", "on")


def narrowed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype that the device holds in the place of `dtype`; None where it holds it as it is."""
    import numpy as np

    if x64_enabled() or dtype.name not in _NARROWED:
        return None
    return np.dtype(_NARROWED[dtype.name])


def first_lost(array: np.ndarray[Any, Any], narrow: np.dtype[Any]) -> tuple[int, ...] | None:
    """The index of the first number that `narrow` cannot hold: an integer beyond its range, a float that overflows.

    Rounding is no loss: float32 holds every float64 of its range to 24 bits.

    Args:
        array: numbers of any shape, of the 64-bit dtype of the same kind.
        narrow: what they become.
    """
    import numpy as np

    if not array.size:
        return None
    if narrow.kind in "iu":
        limits = np.iinfo(narrow.type)
        if array.min() >= limits.min and array.max() <= limits.max:
            return None
        lost = (array < limits.min) | (array > limits.max)
    else:
        with np.errstate(over="ignore"):
            held = np.isfinite(array.astype(narrow))
        if held.all():
            return None
        lost = ~held & np.isfinite(array)
        if not lost.any():
            return None
    return tuple(int(at) for at in np.unravel_index(int(np.argmax(lost)), array.shape))
