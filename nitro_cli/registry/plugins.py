"""Experiments that installed distributions declare, read from package metadata: nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from nitro_cli.registry.importing import find_module_file

__all__ = ["ENTRY_POINT_GROUP", "NO_PLUGINS", "Plugin", "find_plugins", "normalized"]

ENTRY_POINT_GROUP = "nitro.experiments"
NO_PLUGINS = "NITRO_NO_PLUGINS"

_VALUE = re.compile(r"\s*(?P<module>[\w.]+)\s*:\s*(?P<name>[\w.]+)\s*(\[.*\])?\s*")
_OFF = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True)
class Plugin:
    """One entry point of the group `nitro.experiments`.

    Attributes:
        name: the experiment's name.
        import_path: `module:Class` as declared.
        distribution: the distribution that declares it.
        file: the module's file; None when it is missing.
        error: why it cannot be used; None when nothing speaks against it.
    """

    name: str
    import_path: str
    distribution: str
    file: Path | None = None
    error: str | None = None


def normalized(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def find_plugins(env: Mapping[str, str] = os.environ) -> list[Plugin]:
    """List the experiments of the installed distributions.

    A class that two distributions declare under one name is listed once: it is one class, whoever installed it (a
    project that changed its name). A distribution whose metadata cannot be read is listed as broken and hides no
    other. With `NITRO_NO_PLUGINS=1` the list is empty.
    """
    if env.get(NO_PLUGINS, "").strip().lower() not in _OFF:
        return []
    plugins: list[Plugin] = []
    seen: set[str] = set()
    for distribution in distributions():
        found = list(_plugins_of(distribution))
        if not found:
            continue
        owner = normalized(found[0].distribution)
        if owner not in seen:  # of a distribution on two places of the path the first is the one imported
            seen.add(owner)
            listed = {(plugin.name, plugin.import_path) for plugin in plugins}
            plugins += [plugin for plugin in found if (plugin.name, plugin.import_path) not in listed]
    return sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution))


def _plugins_of(distribution: Distribution) -> Iterator[Plugin]:
    try:
        text = distribution.read_text("entry_points.txt")
        if not text or ENTRY_POINT_GROUP not in text:
            return
        entries = [entry for entry in distribution.entry_points if entry.group == ENTRY_POINT_GROUP]
        owner = distribution.metadata["Name"] or "unknown"
    except Exception as problem:  # the metadata is another package's, and may be anything
        owner = _owner_from_path(distribution)
        yield Plugin(owner, "", owner, error=f"its metadata cannot be read: {type(problem).__name__}: {problem}")
        return
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if (entry.name, entry.value) not in seen:
            seen.add((entry.name, entry.value))
            yield _plugin(entry.name, entry.value, owner)


def _owner_from_path(distribution: Distribution) -> str:
    folder = getattr(distribution, "_path", None)
    return Path(str(folder)).name.split("-")[0] if folder is not None else "unknown"


def _plugin(name: str, value: str, owner: str) -> Plugin:
    found = _VALUE.fullmatch(value)
    if found is None:
        return Plugin(name, value, owner, error=f"its entry point {value!r} is not module:Class")
    import_path = f"{found['module']}:{found['name']}"
    file = find_module_file(found["module"])
    if file is None or not file.exists():
        return Plugin(name, import_path, owner, error=f"its module {found['module']} does not exist")
    return Plugin(name, import_path, owner, file=file)
