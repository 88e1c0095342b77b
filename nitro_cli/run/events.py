"""What training tells, one event after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nitro_cli.errors import DivergenceError
from nitro_cli.programs import Outcome, Pair, ReadbackLayout, quotients
from nitro_cli.run.state import RunState

__all__ = [
    "CheckpointBegan",
    "Diverged",
    "EpochBegan",
    "EpochDone",
    "EpochRecorded",
    "Evaluated",
    "Event",
    "Observer",
    "SaveDue",
    "StepsDone",
    "Stopped",
    "TrainEvent",
]


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """An epoch begins, or a resume goes on with one: of its `steps` optimizer steps `taken` were taken before."""

    epoch: int
    steps: int
    taken: int


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Optimizer steps were dispatched, and the numbers of those before them are here.

    Attributes:
        first: the first step whose numbers these are, from 1.
        numbers: f32[steps, R], maybe of no step.
        layout: where the numbers stand in a row.
        scheduled: the schedules' values of a step, by the name they are logged under.
        host: train metrics that ran on the host, of the one step.
    """

    first: int
    numbers: np.ndarray
    layout: ReadbackLayout = field(default_factory=ReadbackLayout)
    scheduled: Callable[[int], Mapping[str, float]] | None = None
    host: Mapping[str, Pair] = field(default_factory=dict)

    def outcome(self, index: int) -> Outcome:
        """What became of a step."""
        return Outcome(int(self.numbers[index, self.layout.OUTCOME]))

    def line(self, index: int) -> dict[str, float | None]:
        """The numbers of a step by name: the loss, its terms, train metrics; None for one of which all is masked."""
        line = self.layout.line(self.numbers[index].tolist())
        return {**line, **quotients(self.host)} if self.host else line


@dataclass(frozen=True, slots=True)
class SaveDue:
    """A checkpoint inside an epoch is due: every step's numbers are here."""


@dataclass(frozen=True, slots=True)
class EpochDone:
    """The steps of an epoch are taken and read; `wait` is the part of its time that was spent waiting for data."""

    epoch: int
    wait: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was asked to stop, and stands between two steps."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """A loss or gradient is not finite; the step was not applied."""

    error: DivergenceError


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The driver evaluated a split at the end of an epoch."""

    split: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpochRecorded:
    """The driver put the row of an epoch into the history; its checkpoint comes next."""

    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointBegan:
    """The driver handed a checkpoint on to be written; `path` is None with a checkpointer of one's own."""

    path: Path | None


TrainEvent = EpochBegan | StepsDone | SaveDue | EpochDone | Stopped | Diverged
"""What `train_events` tells."""

Event = TrainEvent | Evaluated | EpochRecorded | CheckpointBegan
"""What observers are told."""


class Observer(Protocol):
    """Watches a run. It steers nothing but by asking for a stop."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Called with every event: those of training before they are acted on, those of the driver as they happen.

        The state's arrays are valid until this returns.
        """
