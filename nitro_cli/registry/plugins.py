"""Experiments that installed distributions declare, read from package metadata: nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nitro_cli.registry.importing import find_module_file
from nitro_cli.text import DeclaredEntry, declared_entries

__all__ = ["ENTRY_POINT_GROUP", "Plugin", "find_plugins"]

ENTRY_POINT_GROUP = "nitro.experiments"


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


def find_plugins(env: Mapping[str, str] = os.environ) -> list[Plugin]:
    """List the experiments of the installed distributions; see `declared_entries`."""
    return [_plugin(entry) for entry in declared_entries(ENTRY_POINT_GROUP, env)]


def _plugin(entry: DeclaredEntry) -> Plugin:
    error, file = entry.error, None
    if error is None:
        file = find_module_file(entry.module)
        if file is None or not file.exists():
            file, error = None, f"its module {entry.module} does not exist"
    return Plugin(entry.name, entry.import_path, entry.distribution, file, error)
