"""What does not fit, each problem with its place, and the errors made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nitro_cli.errors import ConfigError, PresetError
from nitro_cli.experiment import Problem
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.toml_text import format_key_path

__all__ = ["PresetProblem", "WrittenProblem", "raise_problems"]

_NONE = re.compile(r"=\s*(none|null|nil)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class WrittenProblem(Problem):
    """One thing wrong with a configuration: a problem, and where its value was written.

    Attributes:
        path: the key, `fields` and `schedules` not counted for fields.
        origin: where it was written; None for the class itself.
        fix: how to write it instead, where that is known.
    """

    origin: Origin | None = None
    fix: str | None = None

    @property
    def text(self) -> str:
        """Key path, message and nearest names in one line."""
        close = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        key = f"{format_key_path(self.path)}: " if self.path else ""
        return f"{key}{self.message}{close}"

    def __str__(self) -> str:
        return f"{self.origin.place}: {self.text}" if self.origin is not None else self.text


@dataclass(frozen=True)
class PresetProblem:
    """One thing wrong with a preset, as `nitro presets check` reports it."""

    experiment: str
    preset: str
    path: Path | None
    line: int | None
    key_path: str
    message: str
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.path and self.line else str(self.path or self.experiment)
        key = f"{self.key_path}: " if self.key_path else ""
        close = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"{place}: {key}{self.message}{close}"


def unique(problems: Iterable[WrittenProblem]) -> list[WrittenProblem]:
    """The problems without repetitions, in the order of their places."""

    def place(problem: WrittenProblem) -> tuple[str, int]:
        origin = problem.origin
        return ("", 0) if origin is None else (str(origin.file or ""), origin.line or 0)

    return sorted(dict.fromkeys(problems), key=place)


def raise_problems(problems: Sequence[WrittenProblem], experiment: str, fix: str | None = None) -> None:
    """Raise one error that lists all problems; nothing happens when there are none.

    Raises:
        PresetError: one of them stands in a preset.
        ConfigError: they all come from elsewhere.
    """
    problems = unique(problems)
    if not problems:
        return
    in_preset = [p for p in problems if p.origin is not None and p.origin.kind is OriginKind.PRESET]
    where: str | None
    if in_preset and len({p.origin.file for p in in_preset if p.origin}) == 1:
        origin = in_preset[0].origin
        assert origin is not None
        subject = f"preset {origin.name} does not fit {experiment}"
        where = str(origin.file)
    else:
        subject = f"the {'presets do' if in_preset else 'configuration does'} not fit {experiment}"
        where = ", ".join(dict.fromkeys(p.origin.place for p in problems if p.origin is not None)) or None
    count = "" if len(problems) == 1 else f": {len(problems)} problems"
    error = PresetError if in_preset else ConfigError
    nones = [p for p in problems if p.origin is not None and _NONE.search(p.origin.name)]
    if nones:
        fix = f"TOML has no none: write --unset {format_key_path(nones[0].path)}"
    fix = fix or next((problem.fix for problem in problems if problem.fix), None)
    raise error(
        subject + count,
        where=where,
        why=str(problems[0]) if len(problems) == 1 else "\n    " + "\n    ".join(map(str, problems)),
        nearest=dict.fromkeys(name for problem in problems for name in problem.nearest),
        fix=fix or f"nitro show {experiment} lists the fields and their types",
    )
