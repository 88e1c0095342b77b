"""What installed distributions declare in an entry-point group, read from their metadata: nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["NO_PLUGINS", "DeclaredEntry", "declared_entries", "normalized"]

NO_PLUGINS = "NITRO_NO_PLUGINS"

_VALUE = re.compile(r"\s*(?P<module>[\w.]+)\s*:\s*(?P<name>[\w.]+)\s*(\[.*\])?\s*")
_OFF = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True)
class DeclaredEntry:
    """One entry point of a group.

    Attributes:
        name: the name it is declared under.
        import_path: `module:Name`, or what is declared in its place.
        distribution: the distribution that declares it.
        error: why it cannot be used; None when nothing speaks against it.
    """

    name: str
    import_path: str
    distribution: str
    error: str | None = None

    @property
    def module(self) -> str:
        """The module that is to be imported."""
        return self.import_path.partition(":")[0]


def normalized(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def declared_entries(group: str, env: Mapping[str, str] = os.environ) -> list[DeclaredEntry]:
    """List the entry points of a group.

    What two distributions declare alike under one name is listed once: it is one thing, whoever installed it (a
    project that changed its name). A distribution whose metadata cannot be read is listed as broken and hides no
    other. With `NITRO_NO_PLUGINS=1` the list is empty.

    Args:
        group: such as `nitro.experiments`.
        env: where `NITRO_NO_PLUGINS` is looked up.
    """
    from importlib.metadata import distributions

    if env.get(NO_PLUGINS, "").strip().lower() not in _OFF:
        return []
    entries: list[DeclaredEntry] = []
    seen: set[str] = set()
    for distribution in distributions():
        found = list(_entries_of(distribution, group))
        if not found:
            continue
        owner = normalized(found[0].distribution)
        if owner not in seen:  # of a distribution on two places of the path the first is the one imported
            seen.add(owner)
            listed = {(entry.name, entry.import_path) for entry in entries}
            entries += [entry for entry in found if (entry.name, entry.import_path) not in listed]
    return sorted(entries, key=lambda entry: (entry.name, entry.distribution))


def _entries_of(distribution: Distribution, group: str) -> Iterator[DeclaredEntry]:
    try:
        text = distribution.read_text("entry_points.txt")
        if not text or group not in text:
            return
        points = [point for point in distribution.entry_points if point.group == group]
        owner = distribution.metadata["Name"] or "unknown"
    except Exception as problem:  # the metadata is another package's, and may be anything
        owner = _owner_from_path(distribution)
        yield DeclaredEntry(owner, "", owner, f"its metadata cannot be read: {type(problem).__name__}: {problem}")
        return
    for name, value in dict.fromkeys((point.name, point.value) for point in points):
        found = _VALUE.fullmatch(value)
        if found is None:
            yield DeclaredEntry(name, value, owner, f"its entry point {value!r} is not module:Class")
        else:
            yield DeclaredEntry(name, f"{found['module']}:{found['name']}", owner)


def _owner_from_path(distribution: Distribution) -> str:
    folder = getattr(distribution, "_path", None)
    return Path(str(folder)).name.split("-")[0] if folder is not None else "unknown"
