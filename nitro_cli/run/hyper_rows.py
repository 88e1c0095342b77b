"""The hyperparameters of the steps to come, one block of steps at a time."""

from __future__ import annotations

from typing import Any

from nitro_cli.optim import BLOCK, Hyper
from nitro_cli.run.devices import Placement

__all__ = ["HyperRows"]


class HyperRows:
    """The block's table for the program, and the values that are logged.

    Args:
        hyper: the values by step.
        placement: the devices.
        log: whether values are kept for the log.
    """

    def __init__(self, hyper: Hyper, placement: Placement, *, log: bool) -> None:
        self._hyper = hyper
        self._placement = placement
        self._log = log
        self._of = (-1, -1)
        self._logged: dict[str, list[float]] = {}
        self._previous: dict[str, list[float]] = {}

    def stale(self, step: int) -> bool:
        """Whether the table at hand is not of the step after `step`: another block, or values that changed since."""
        return (step // BLOCK, self._hyper.version) != self._of

    def table(self, step: int) -> Any:
        """The rows of the block that the step after `step` is in, f32[BLOCK, K], on the device."""
        block = step // BLOCK
        # A block's last step is read when the next block's table is already there.
        self._previous, self._logged = self._logged, {}
        self._of = (block, self._hyper.version)
        first = block * BLOCK + 1
        if self._log:
            self._logged = self._hyper.logged_values(first)
        return self._placement.put(self._hyper.table(first))

    def logged(self, step: int) -> dict[str, float]:
        """The schedule values of a step, by the name they are logged under."""
        held = self._logged if (step - 1) // BLOCK == self._of[0] else self._previous
        at = (step - 1) % BLOCK
        return {name: values[at] for name, values in held.items()}
