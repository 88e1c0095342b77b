"""Preset files: where they lie, what they may hold, and the chain a preset extends."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, PresetError, PresetNotFoundError, nearest
from nitro_cli.registry.discovery import ExperimentRef
from nitro_cli.registry.importing import LOCAL_FOLDER, package_root
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.toml_text import KeyPath, TomlDocument, read_toml, split_key_path

__all__ = ["PresetFile", "list_presets", "preset_chain", "preset_folders", "preset_path", "read_preset"]

_TOP_LEVEL = {"description": str, "extends": str, "unset": list, "fields": dict, "schedules": dict}
_KINDS = {str: "text", list: "a list of keys", dict: "a table"}


@dataclass(frozen=True)
class PresetFile:
    """One preset as written, not yet checked against its experiment.

    Attributes:
        name: the preset's name, its file's stem.
        document: the file.
        problems: what is wrong with its own layout: key path, message, nearest names.
    """

    name: str
    document: TomlDocument
    problems: tuple[tuple[KeyPath, str, tuple[str, ...]], ...] = field(default=())

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @property
    def description(self) -> str:
        """What the preset says it is for."""
        text = self.document.data.get("description", "")
        return text if isinstance(text, str) else ""

    @property
    def extends(self) -> str | None:
        """The name of its parent."""
        parent = self.document.data.get("extends")
        return parent if isinstance(parent, str) else None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The `[fields]` table."""
        return self._table("fields") or {}

    @property
    def schedules(self) -> Mapping[str, Any] | None:
        """The `[schedules]` table; None when there is none, which keeps the parent's."""
        return self._table("schedules")

    @property
    def unset(self) -> list[tuple[str, ...]]:
        """The key paths set to none."""
        entries = self.document.data.get("unset", [])
        paths = []
        for entry in entries if isinstance(entries, list) else []:
            path = _unset_path(entry)
            if path is not None:
                paths.append(path)
        return paths

    def _table(self, name: str) -> Mapping[str, Any] | None:
        table = self.document.data.get(name)
        return table if isinstance(table, dict) else None

    def origin(self, key_path: KeyPath) -> Origin:
        """The origin of a key of this file, by its whole key path (`fields` or `schedules` first)."""
        return Origin(OriginKind.PRESET, self.name, self.path, self.document.line(key_path))


def _unset_path(entry: Any) -> tuple[str, ...] | None:
    if not isinstance(entry, str):
        return None
    try:
        path, rest = split_key_path(entry)
    except ValueError:
        return None
    return None if rest else path


def preset_folders(ref: ExperimentRef, cwd: Path | None = None) -> list[Path]:
    """The folders that may hold an experiment's presets, the first to be searched first.

    First `presets/<Experiment>` of the working directory; then `presets/<Experiment>` beside the file that declares
    the experiment and in each package around it; last in the folder that holds its package, when that is a checkout
    (it has a `pyproject.toml`, the package may lie in `src/`) or the package is a local `experiments/`.
    """
    bases = [(cwd or Path.cwd()).absolute()]
    if ref.file is not None:
        folder = ref.file.absolute().parent
        root = package_root(ref.file)
        bases.append(folder)
        while folder != root and root in folder.parents:
            folder = folder.parent
            bases.append(folder)
        holder = root.parent.parent if root.parent.name == "src" else root.parent
        if root.name == LOCAL_FOLDER or (holder / "pyproject.toml").is_file():
            bases.append(holder)
    names = dict.fromkeys((ref.name, ref.class_name))
    return list(dict.fromkeys(base / "presets" / name for base in bases for name in names))


def list_presets(ref: ExperimentRef, cwd: Path | None = None) -> list[str]:
    """The names of an experiment's presets, sorted; nothing is imported and no preset is read."""
    return sorted(_preset_paths(ref, cwd))


def _preset_paths(ref: ExperimentRef, cwd: Path | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in preset_folders(ref, cwd):
        if folder.is_dir():
            for file in sorted(folder.glob("*.toml")):
                if not file.name.startswith("."):
                    found.setdefault(file.stem, file)
    return found


def preset_path(ref: ExperimentRef, name: str, cwd: Path | None = None) -> Path:
    """The file of one preset.

    Raises:
        PresetNotFoundError: the experiment has no preset of this name; the nearest ones are given.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"{reprlib.repr(name)} is no name of a preset", why=f"it is a {type(name).__name__}", fix="give text"
        )
    paths = _preset_paths(ref, cwd)
    if name in paths:
        return paths[name]
    known = ", ".join(paths) if paths else "none"
    raise PresetNotFoundError(
        f"{ref.name} has no preset {name}",
        where=", ".join(str(folder) for folder in preset_folders(ref, cwd)),
        why=f"its presets: {known}",
        nearest=nearest(name, paths),
        fix=f"nitro presets new {ref.name} {name} writes one" if name.isidentifier() else None,
    )


def read_preset(path: Path) -> PresetFile:
    """Read one preset file; what is wrong with its layout is noted in it, not raised.

    Raises:
        PresetError: the file cannot be read or is not TOML.
    """
    document = read_toml(path, PresetError)
    return PresetFile(path.stem, document, tuple(_layout_problems(document)))


def _layout_problems(document: TomlDocument) -> Iterator[tuple[KeyPath, str, tuple[str, ...]]]:
    for key, value in document.data.items():
        kind = _TOP_LEVEL.get(key)
        if kind is None:
            yield (key,), f"unknown key; a preset has {', '.join(_TOP_LEVEL)}", nearest(key, _TOP_LEVEL)
        elif not isinstance(value, kind):
            yield (key,), f"should be {_KINDS[kind]}, got {type(value).__name__} {value!r}", ()
    unset = document.data.get("unset", [])
    fields = document.data.get("fields", {})
    for index, entry in enumerate(unset if isinstance(unset, list) else []):
        path = _unset_path(entry)
        if path is None:
            yield ("unset", index), f"should be a key such as a.b, got {entry!r}", ()
        elif isinstance(fields, dict) and len(path) == 1 and path[0] in fields:
            yield ("unset", index), f"{path[0]} is unset here and set in [fields]; keep one of the two", ()


def preset_chain(ref: ExperimentRef, name: str, cwd: Path | None = None) -> list[PresetFile]:
    """Read a preset and the presets it extends, nearest first.

    An unknown parent or a cycle is noted as a problem of the file that names it, so that it is told together with the
    file's other problems.

    Raises:
        PresetNotFoundError: there is no preset `name`.
        PresetError: a file of the chain is not TOML.
    """
    paths = _preset_paths(ref, cwd)
    chain = [read_preset(preset_path(ref, name, cwd))]
    seen = [name]
    while (parent := chain[-1].extends) is not None:
        message = None
        if parent in seen:
            message = f"extends itself: {' -> '.join([*seen[seen.index(parent) :], parent])}"
        elif parent not in paths:
            message = f"{ref.name} has no preset {parent}; its presets: {', '.join(paths)}"
        if message is not None:
            last = chain[-1]
            problem = (("extends",), message, nearest(parent, paths) if parent not in seen else ())
            chain[-1] = PresetFile(last.name, last.document, (*last.problems, problem))
            break
        chain.append(read_preset(paths[parent]))
        seen.append(parent)
    return chain
