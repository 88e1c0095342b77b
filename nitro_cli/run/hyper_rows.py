"""The hyperparameters of the steps to come, one block of steps at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.optim import BLOCK

if TYPE_CHECKING:
    from nitro_cli.run.parts import Parts

__all__ = ["HyperRows", "device_inputs"]


class HyperRows:
    """The block's table for the program, and the values that are logged.

    Args:
        parts: of the handle.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._block = -1
        self._logged: dict[str, list[float]] = {}
        self._previous: dict[str, list[float]] = {}

    def stale(self) -> bool:
        """Whether the next step is in another block than the last table."""
        return self._parts.step // BLOCK != self._block

    def next_table(self) -> Any:
        """The rows of the block that the next step is in, f32[BLOCK, K], on the device."""
        parts = self._parts
        self._previous, self._logged = self._logged, {}
        self._block = parts.step // BLOCK
        first = self._block * BLOCK + 1
        if parts.experiment.autolog_schedules:
            self._logged = parts.hyper.logged_values(first)
        return parts.placement.put(parts.hyper.table(first))

    def logged(self, step: int) -> dict[str, float]:
        """The schedule values of a step, by the name they are logged under."""
        # A block's last step is read when the next block's table is already there.
        held = self._logged if (step - 1) // BLOCK == self._block else self._previous
        at = (step - 1) % BLOCK
        return {name: values[at] for name, values in held.items()}


def device_inputs(parts: Parts, step: int) -> dict[str, Any]:
    """The Device fields as the training program takes them, on the device: a value per step for what can be scheduled.

    Args:
        parts: of the handle.
        step: optimizer steps taken before the step to come; the values are those of its block.

    Returns:
        Name to array: of the fields that a schedule can drive [BLOCK] in their own dtype, the others as they are.
    """
    scheduled = parts.hyper.device_values(step // BLOCK * BLOCK + 1)
    values = {name: scheduled.get(name, np.asarray(parts.device[name])) for name in parts.hyper.device_fields}
    stepped = {name: np.full(BLOCK, held, parts.device[name].dtype) for name, held in values.items()}
    return {**parts.device, **parts.placement.put(stepped)}
