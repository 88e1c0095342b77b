"""How many tokens a run was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["TokensSeen"]


class TokensSeen:
    """The tokens that counted in steps that were taken, over all epochs, also across resumes. A component."""

    version = 1
    required = False

    def __init__(self) -> None:
        self.seen = 0

    def state(self) -> dict[str, Any]:
        """The tokens of the epochs that have ended."""
        return {"tokens_seen": self.seen}

    def load_state(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from there."""
        self.seen = int(state["tokens_seen"])

    def epoch_row(self, sums: Mapping[str, float]) -> dict[str, int]:
        """What the row of an epoch that has just ended says.

        Args:
            sums: of its train metrics, over the steps that were taken.
        """
        self.seen += int(sums.get("tokens", 0))
        return {"tokens_seen": self.seen}
