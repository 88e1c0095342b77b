"""How the place of a leaf in a pytree is written: in checkpoints, reports, errors and exported files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["path_keys", "path_text"]


def path_keys(path: Iterable[Any]) -> tuple[str | int, ...]:
    """The keys of a pytree path: strings for keys and attributes, integers for positions.

    Args:
        path: JAX's key entries, or plain keys.
    """
    return tuple(_key(entry) for entry in path)


def path_text(path: Iterable[Any]) -> str:
    """A pytree path as one string, `encoder/layers/0/kernel`; empty for the root."""
    return "/".join(str(key) for key in path_keys(path))


def _key(entry: Any) -> str | int:
    if not isinstance(entry, str | int):
        for attribute in ("key", "idx", "name"):
            if hasattr(entry, attribute):
                entry = getattr(entry, attribute)
                break
    return entry if isinstance(entry, int) and not isinstance(entry, bool) else str(entry)
