"""Where each value of a configuration came from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nitro_cli.text import visible

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
    DERIVED = "derived"
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
        was: for a record, the `recorded` origin that stands there; empty where the record does not say.
    """

    kind: OriginKind
    name: str = ""
    file: Path | None = None
    line: int | None = None
    folder: Path | None = None
    was: str = ""

    @property
    def recorded(self) -> str:
        """The layer and what was written where, without values and without paths of this machine, for a record."""
        match self.kind:
            case OriginKind.RECORD:
                return self.was or str(self.kind)
            case OriginKind.DEFAULT | OriginKind.DERIVED:
                return str(self.kind)
            case OriginKind.PRESET | OriginKind.PROJECT:
                line = f":{self.line}" if self.line else ""
                name = f"{self.name} ({_portable(self.file)}{line})" if self.file is not None else self.name
                return f"{self.kind}: {name}"
            case _:
                return f"{self.kind}: {self.name.partition('=')[0]}"

    @property
    def first_kind(self) -> OriginKind:
        """The layer it was first written in; `record` where a record does not say."""
        if self.kind is not OriginKind.RECORD or not self.was:
            return self.kind
        return OriginKind(self.was.partition(":")[0])

    @property
    def explicit(self) -> bool:
        """Whether a person set the value, so that it wins over what `derive` returns.

        Records made before origins were kept do not say: their runs trained with the derived values.
        """
        return self.first_kind not in (OriginKind.RECORD, OriginKind.DERIVED, OriginKind.DEFAULT)

    @property
    def base(self) -> Path | None:
        """The folder that relative paths written at this place are relative to; None for the working directory."""
        if self.file is not None and self.kind in (OriginKind.PRESET, OriginKind.PROJECT):
            return self.file.absolute().parent
        return self.folder

    def beside(self, other: Origin) -> bool:
        """Whether both stand in one place: the same file, or the same words."""
        return (self.kind, self.name, self.file, self.was) == (other.kind, other.name, other.file, other.was)

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
                return f"{visible(self.was)}, recorded in {self.place}" if self.was else f"record ({self.place})"
            case OriginKind.DERIVED:
                return "derived"
            case OriginKind.DEFAULT:
                return "class default"
            case OriginKind.KEYWORD:
                return f"keyword {self.name}"
            case _:
                return self.name


def _shown(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative


def _portable(file: Path) -> str:
    """A file from the working directory on, or from its `presets` folder on where it lies elsewhere."""
    relative = Path(os.path.relpath(file))
    if ".." not in relative.parts:
        return relative.as_posix()
    inside = [at for at, part in enumerate(file.parts) if part == "presets"]
    return "/".join(file.parts[inside[-1] :]) if inside else file.name
