"""Telling whether a file lies in something that nitro wrote: a run, a checkpoint, a bundle or a pack.

These are what people hand on. Code inside one is somebody else's until a person names it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nitro_cli.text import read_regular

__all__ = ["artefact_around"]

_MARKS = ("run.json", "record.json", "pack.json")
_LARGEST = 64 * 2**20


def artefact_around(path: Path) -> Path | None:
    """The innermost folder around a path, links followed or not, that is a run, a directory of runs, or an artefact.

    A folder counts by the files that nitro writes into each: run.json, record.json, pack.json; a manifest.json of
    nitro's, or one that cannot be read to find out.
    """
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((*Path(os.path.abspath(path)).parents, *real.parents)):
        if any(os.path.lexists(folder / mark) for mark in _MARKS) or _has_manifest(folder):
            return folder
    return None


def _has_manifest(folder: Path) -> bool:
    """Whether manifest.json is that of runs or of a bundle; web extensions have a file of the name too."""
    content = _content(folder / "manifest.json")
    if content is None:
        return False
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        return True
    return isinstance(found, dict) and (found.get("kind") == "nitro-bundle" or "runs" in found)


def _content(file: Path) -> bytes | None:
    """What a file holds, nothing where it cannot be read; None where there is none."""
    if not os.path.lexists(file):
        return None
    try:
        return read_regular(file, limit=_LARGEST)
    except OSError:
        return b"\xff"
