"""How a run ended, in a person's words: a run that was asked to stop says what asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.errors import IntegrityError

if TYPE_CHECKING:
    from nitro_cli.checkpoints import RunSummary

__all__ = ["asked_text", "status_text", "stop_cause"]

_ASKED = {
    "sigint": "interrupted",
    "sigterm": "SIGTERM",
    "sigusr1": "SIGUSR1",
    "max_time": "max_time",
    "request": "request_stop",
}


def stop_cause(summary: RunSummary) -> str | None:
    """What asked the run to stop: `sigint`, `sigterm`, `sigusr1`, `max_time`, `request`; None when nothing did.

    Also None where its run.json does not say, as those of earlier versions do not, or cannot be read.
    """
    if summary.status != "requested":
        return None
    from nitro_cli.checkpoints import read_run_file

    try:
        cause = read_run_file(summary.path / "run.json").get("stop_cause")
    except (OSError, IntegrityError):
        return None
    return cause if isinstance(cause, str) and cause in _ASKED else None


def asked_text(cause: str | None) -> str | None:
    """The word for what asked a run to stop: `interrupted` for Ctrl-C, `SIGTERM`, `max_time`."""
    return None if cause is None else _ASKED[cause]


def status_text(summary: RunSummary) -> str:
    """The run's status, and in the place of `requested` what asked."""
    return asked_text(stop_cause(summary)) or summary.status
