"""Whether an artefact gives what the handle predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from nitro_cli.errors import IntegrityError

__all__ = ["check_agreement"]

TOLERANCE = 1e-5
ROUNDINGS = 4
"""How many roundings of a half-precision dtype two programs may lie apart: they round at other places inside."""


def check_agreement(found: Mapping[str, Any], wanted: Mapping[str, np.ndarray], where: str) -> None:
    """Raise unless an artefact's outputs equal the handle's own to 1e-5, or to what a dtype of half precision can tell.

    Raises:
        IntegrityError: an output is missing, of another shape, or differs.
    """
    for name, value in wanted.items():
        other = np.asarray(found[name]) if name in found else None
        if other is None or other.shape != value.shape:
            shape = "nothing" if other is None else f"shape {other.shape}"
            raise IntegrityError(f"output {name} has {shape}, {value.shape} was expected", where=where)
        tolerance = _tolerance(value.dtype)
        wide, expected = _wide(other), _wide(value)
        if not np.allclose(wide, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
            worst = float(np.max(np.abs(wide - expected)))
            raise IntegrityError(f"output {name} differs from the handle's prediction by {worst:.3g}", where=where)


def _tolerance(dtype: np.dtype[Any]) -> float:
    floating = jnp.issubdtype(dtype, jnp.floating)
    return max(TOLERANCE, ROUNDINGS * float(jnp.finfo(dtype).eps)) if floating and dtype.itemsize < 4 else TOLERANCE


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
