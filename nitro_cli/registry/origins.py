"""Where each value of a configuration came from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["Origin", "OriginKind"]


class OriginKind(StrEnum):
    """The layers a value can come from, the strongest first."""

    FLAG = "flag"
    KEYWORD = "keyword"
    SET = "set"
    ENVIRONMENT = "environment"
    PRESET = "preset"
    PROJECT = "project"
    RECORD = "record"
    DEFAULT = "default"


@dataclass(frozen=True)
class Origin:
    """One value's origin.

    Attributes:
        kind: the layer.
        name: what was written: the flag, the `--set` text, the variable, the preset's name.
        file: the file it stands in, for presets, `[tool.nitro]`, records, and class defaults where known.
        line: the line in that file, counted from 1.
        folder: for a record, the folder its relative paths were written for, when that is not the current one.
    """

    kind: OriginKind
    name: str = ""
    file: Path | None = None
    line: int | None = None
    folder: Path | None = None

    @property
    def base(self) -> Path | None:
        """The folder that relative paths written at this place are relative to; None for the working directory."""
        if self.file is not None and self.kind in (OriginKind.PRESET, OriginKind.PROJECT):
            return self.file.absolute().parent
        return self.folder

    def beside(self, other: Origin) -> bool:
        """Whether both stand in one place: the same file, or the same words."""
        return (self.kind, self.name, self.file) == (other.kind, other.name, other.file)

    @property
    def place(self) -> str:
        """The file and line, or what was written on the command line."""
        if self.file is None:
            return self.name or str(self.kind)
        return f"{_shown(self.file)}:{self.line}" if self.line else _shown(self.file)

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.PRESET:
                return f"preset {self.name} ({self.place})"
            case OriginKind.PROJECT:
                return f"[tool.nitro] ({self.place})"
            case OriginKind.RECORD:
                return f"record ({self.place})"
            case OriginKind.DEFAULT:
                return "class default"
            case OriginKind.KEYWORD:
                return f"keyword {self.name}"
            case _:
                return self.name


def _shown(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative
