"""Data sources of other libraries, chosen by what the object is; no library is imported for it."""

from __future__ import annotations

from typing import Any

__all__ = ["adapt"]


def adapt(name: str, source: Any) -> Any:
    """Return a native data source for an object of a known library, and any other object as it is.

    Args:
        name: name of the split, for errors.
        source: the object that `build_data` returned, without wrapper.

    Raises:
        DataError: the object is of a known library but lacks what a split needs.
    """
    return source
