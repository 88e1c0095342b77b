"""Names as a tracker takes them: no two metrics under one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from nitro_cli.errors import warn

__all__ = ["TrackerNames", "tracker_name"]


def tracker_name(context: str, metric: str) -> str:
    """The name of a metric in a tracker that has no contexts: `train/loss`; those of `data` say it themselves."""
    return metric if context == "data" else f"{context}/{metric}"


class TrackerNames:
    """Writes names in the alphabet of a tracker; two that it makes one stay two, also in a run that goes on.

    Args:
        tracker: for the warning that tells of a name written otherwise.
        allowed: the nearest name that the tracker takes.
    """

    def __init__(self, tracker: str, allowed: Callable[[str], str]) -> None:
        self._tracker = tracker
        self._allowed = allowed
        self._written: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name to log under."""
        written = self._written.get(name)
        if written is None:
            written = self._allowed(name)
            if written in self._taken:
                written += f"_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
            self._note(name, written)
            if written != name:
                text = f"{self._tracker} takes no name {name!r} beside the others; it is logged as {written!r}."
                warn(text)
        return written

    def state(self) -> dict[str, str]:
        """The names written otherwise, for a run that goes on."""
        return {name: written for name, written in self._written.items() if written != name}

    def load_state(self, state: Mapping[str, str]) -> None:
        """Go on with the names of `state`."""
        for name, written in state.items():
            self._note(name, written)

    def _note(self, name: str, written: str) -> None:
        self._written[name] = written
        self._taken.add(written)
