"""Whether code runs inside an import: an exception raised there by a signal leaves a library half made."""

from __future__ import annotations

from types import FrameType

__all__ = ["importing"]


def importing(frame: FrameType | None) -> bool:
    """Whether `frame` was called, at whatever depth, by Python's import system."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
