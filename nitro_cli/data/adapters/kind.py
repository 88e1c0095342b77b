"""What library an object is of, seen from its classes alone."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_instance"]


def is_instance(source: Any, package: str, *names: str) -> bool:
    """Return whether one of the object's classes has one of these names and comes from `package`.

    Args:
        source: the object.
        package: top-level package; where it is not imported, no object of it can exist.
        names: class names.
    """
    if package not in sys.modules:
        return False
    return any(cls.__name__ in names and cls.__module__.split(".")[0] == package for cls in type(source).__mro__)
