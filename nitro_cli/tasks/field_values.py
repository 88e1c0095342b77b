"""What the Device fields of a task may hold: checked wherever a value is given."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from nitro_cli.experiment import Device

__all__ = ["ClassWeights", "Share"]


def _weights(value: Any) -> Any:
    numbers = np.asarray(value, np.float64)
    if numbers.ndim > 1:
        raise PydanticCustomError("weights", "should be one number or one for each, got {n} axes", {"n": numbers.ndim})
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= 0))]
    if wrong.size:
        raise PydanticCustomError("weights", "a weight is finite and 0 or more, got {x}", {"x": f"{wrong.flat[0]:g}"})
    return value


ClassWeights = Annotated[Device[Any], AfterValidator(_weights)]
"""One weight for all, or one for each: finite, 0 or more."""

Share = Annotated[Device[float], Field(ge=0, le=1, allow_inf_nan=False)]
"""A share or a probability: 0 to 1."""
