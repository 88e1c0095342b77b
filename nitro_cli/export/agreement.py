"""Whether an artefact gives what the handle predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.errors import IntegrityError

__all__ = ["TOLERANCE", "check_outputs"]

TOLERANCE = 1e-5


def check_outputs(found: Mapping[str, Any], wanted: Mapping[str, np.ndarray], where: str) -> None:
    """Raise unless an artefact's outputs equal the handle's own to 1e-5.

    Raises:
        IntegrityError: an output is missing, of another shape, or differs.
    """
    for name, value in wanted.items():
        other = np.asarray(found[name]) if name in found else None
        if other is None or other.shape != value.shape:
            shape = "nothing" if other is None else f"shape {other.shape}"
            raise IntegrityError(f"output {name} has {shape}, {value.shape} was expected", where=where)
        if not np.allclose(other, value, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            worst = float(np.max(np.abs(other.astype(np.float64) - value.astype(np.float64))))
            raise IntegrityError(f"output {name} differs from the handle's prediction by {worst:.3g}", where=where)
