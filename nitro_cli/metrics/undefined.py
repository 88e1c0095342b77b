"""`Undefined`: that a metric has no value, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Undefined"]


@dataclass(frozen=True)
class Undefined:
    """What a metric gives where it has no value.

    Args:
        reason: why, in words.
        instead: what a run that has to go on takes in its place; None where nothing can stand there.
        classes: the classes or labels that it is undefined for, by number.
    """

    reason: str
    instead: float | None = None
    classes: tuple[int, ...] = ()

    def told(self, names: Sequence[str] = ()) -> str:
        """The reason, with the classes by their names where there are some."""
        if not self.classes:
            return self.reason
        shown = ", ".join(names[place] if names else str(place) for place in self.classes[:3])
        more = f" and {len(self.classes) - 3} more" if len(self.classes) > 3 else ""
        return f"undefined for {shown}{more}: {self.reason}"
