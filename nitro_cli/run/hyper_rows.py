"""The hyperparameters of the steps to come, one block of steps at a time."""

from __future__ import annotations

from typing import Any

from nitro_cli.optim import BLOCK, Hyper
from nitro_cli.run.devices import Placement

__all__ = ["HyperRows"]


class HyperRows:
    """The block's table for the program, and the values that are logged.

    Args:
        placement: the devices.
        log: whether values are kept for the log.
    """

    def __init__(self, placement: Placement, *, log: bool) -> None:
        self._placement = placement
        self._log = log
        self._block = -1
        self._hyper: Hyper | None = None
        self._logged: dict[str, list[float]] = {}
        self._previous: dict[str, list[float]] = {}

    def stale(self, step: int, hyper: Hyper) -> bool:
        """Whether the table at hand is not of the step after `step`: another block, or other values than `hyper`'s."""
        return step // BLOCK != self._block or hyper is not self._hyper

    def table(self, step: int, hyper: Hyper) -> Any:
        """The rows of the block that the step after `step` is in, f32[BLOCK, K], on the device."""
        # A block's last step is read when the next block's table is already there.
        self._previous, self._logged = self._logged, {}
        self._block, self._hyper = step // BLOCK, hyper
        first = self._block * BLOCK + 1
        if self._log:
            self._logged = hyper.logged_values(first)
        return self._placement.put(hyper.table(first))

    def logged(self, step: int) -> dict[str, float]:
        """The schedule values of a step, by the name they are logged under."""
        held = self._logged if (step - 1) // BLOCK == self._block else self._previous
        at = (step - 1) % BLOCK
        return {name: values[at] for name, values in held.items()}
