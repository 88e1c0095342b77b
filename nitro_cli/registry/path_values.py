"""Relative paths in a configuration: relative to the file they are written in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nitro_cli.registry.layers import Layers
from nitro_cli.registry.toml_text import KeyPath

__all__ = ["anchor_paths", "paths_seen_from"]

_Change = Callable[[KeyPath, str, Path], str]


def anchor_paths(layers: Layers, validated: Mapping[str, Any]) -> bool:
    """Make relative paths absolute that were written in a file, against that file's folder.

    A value counts as a path when the experiment's validation made a `pathlib` path of it, at any depth, `run_dir`
    included. Paths from the command line, the environment and the class stay as they are: relative to the working
    directory.

    Args:
        layers: the values, changed in place.
        validated: the validated fields by name.

    Returns:
        Whether anything changed.
    """

    def anchored(path: KeyPath, raw: str, value: Path) -> str:
        origin = layers.origin(path)
        base = origin.base if origin is not None else None
        if base is None or value.is_absolute():
            return raw
        return str(base / value)

    changed = False
    for name in list(layers.fields):
        before = layers.fields[name]
        after = _mapped((name,), before, validated.get(name), anchored)
        if after is not before:
            layers.fields[name] = after
            changed = True
    return changed


def paths_seen_from(folder: Path, form: Any, value: Any, cwd: Path) -> Any:
    """Rewrite the relative paths of a natural form, which `cwd` resolves, for a file that lies in `folder`.

    Args:
        folder: where the form will be written.
        form: the natural form of `value`.
        value: the value.
        cwd: what relative paths in the value are relative to.
    """

    def relative(_: KeyPath, raw: str, path: Path) -> str:
        return raw if path.is_absolute() else os.path.relpath(cwd / path, folder)

    return _mapped((), form, value, relative)


def _mapped(path: KeyPath, raw: Any, value: Any, change: _Change) -> Any:
    if isinstance(raw, str):
        return change(path, raw, value) if isinstance(value, Path) else raw
    if isinstance(raw, dict):
        items = {key: _mapped((*path, key), item, _at(value, key), change) for key, item in raw.items()}
        return items if any(items[key] is not raw[key] for key in raw) else raw
    if isinstance(raw, list):
        inner = _elements(raw, value)
        elements = [_mapped((*path, i), item, inner[i], change) for i, item in enumerate(raw)]
        return elements if any(new is not old for new, old in zip(elements, raw, strict=True)) else raw
    return raw


def _at(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    return getattr(value, key, None) if isinstance(key, str) and key.isidentifier() else None


def _elements(raw: list[Any], value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)) and len(value) == len(raw):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return [Path(item) if isinstance(item, str) and Path(item) in value else None for item in raw]
    return [None] * len(raw)
