"""How a run ended, in a person's words: a run that was asked to stop says what asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nitro_cli.text import read_regular

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
_MOST_BYTES = 1 << 26


def stop_cause(summary: RunSummary) -> str | None:
    """What asked the run to stop: `sigint`, `sigterm`, `sigusr1`, `max_time`, `request`; None when nothing did.

    Also None where its run.json does not say, as those of earlier versions do not, or cannot be read.
    """
    if summary.status != "requested":
        return None
    try:
        document = json.loads(read_regular(summary.path / "run.json", limit=_MOST_BYTES, follow=False))
    except (OSError, ValueError, RecursionError):
        return None
    cause = document.get("stop_cause") if isinstance(document, dict) else None
    return cause if cause in _ASKED else None


def asked_text(cause: str | None) -> str | None:
    """The word for what asked a run to stop: `interrupted` for Ctrl-C, `SIGTERM`, `max_time`."""
    return None if cause is None else _ASKED[cause]


def status_text(summary: RunSummary) -> str:
    """The run's status, and in the place of `requested` what asked."""
    return asked_text(stop_cause(summary)) or summary.status
