"""How a run ended, in a person's words: a run that was asked to stop says what asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nitro_cli.checkpoints import RunSummary

__all__ = ["asked_text", "status_text"]

_ASKED = {
    "sigint": "interrupted",
    "sigterm": "SIGTERM",
    "sigusr1": "SIGUSR1",
    "max_time": "max_time",
    "request": "request_stop",
}


def asked_text(cause: str | None) -> str | None:
    """The word for what asked a run to stop: `interrupted` for Ctrl-C, `SIGTERM`, `max_time`."""
    return None if cause is None else _ASKED[cause]


def status_text(summary: RunSummary) -> str:
    """The run's status, and in the place of `requested` what asked."""
    return asked_text(summary.stop_cause) or summary.status
