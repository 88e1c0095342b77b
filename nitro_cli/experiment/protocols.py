"""What a user's own object must have to stand in for a part that a knob holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["CheckpointStore", "Logger", "StopRule"]


@runtime_checkable
class StopRule(Protocol):
    """Decides after each epoch's validation whether the run stops.

    It may also have `state()` and `load_state(state)`, so that its counters continue on resume.
    """

    def should_stop(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Take in one epoch's validation metrics and say whether to stop."""
        ...


@runtime_checkable
class Logger(Protocol):
    """Where numbers are written; `log_tags`, `log_confusion`, `run_id`, `run_url`, `state`, `reattach` are optional."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write the run's hyperparameters, once, before the first compile."""
        ...

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Write one line of metrics; `context` is `train`, `validate` or `data`."""
        ...

    def log_other(self, key: str, value: Any) -> None:
        """Write one free-form value."""
        ...

    def finish(self, status: str) -> None:
        """Close the logged run with its status."""
        ...


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps checkpoints somewhere, not necessarily in a file system, and rotates them as it likes.

    It may also have `metric` and `mode`, to be given scores of another metric than the run's monitor.
    """

    def save(self, record: Any, *, epoch: int, step: int, score: float | None) -> Any:
        """Keep one `CheckpointRecord`, or return False to decline it.

        Called in the training loop after each epoch, and for each resume point.

        Args:
            record: `meta`, of which `record.meta_as_json()` is the JSON data, and `arrays`, path text to numpy array;
                neither changes any more.
            epoch, step: where training stands.
            score: the epoch's value of the metric; None for a resume point and without validation.
        """
        ...

    def load(self, source: Any) -> Any:
        """Give back the `CheckpointRecord` that a `find_...` named; `CheckpointRecord.from_json` makes one."""
        ...

    def find_latest(self) -> Any:
        """What to give `load` for the newest record, resume points included; None when there is none."""
        ...

    def find_best(self) -> Any:
        """What to give `load` for the record with the best score; None when there is none."""
        ...
