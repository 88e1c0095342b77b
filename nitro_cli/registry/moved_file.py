"""Where the file of an experiment went, when its project was moved or copied to another machine with its runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from nitro_cli.errors import NitroWarning

__all__ = ["moved_file"]


def moved_file(recorded: Path, project: str | None, config: Path) -> Path | None:
    """Find the file that a run's configuration names, in the place that it has now.

    Its path below the project's old directory is looked up below the working directory and below each directory
    above the configuration; where it lay elsewhere, its last parts are.

    Args:
        recorded: the file, as the configuration names it.
        project: the working directory of the run.
        config: the configuration.

    Returns:
        The recorded file where it is there, else the first one found, with a warning; None when there is none.
    """
    if recorded.is_file():
        return recorded
    for base in (Path.cwd(), *config.absolute().parents):
        for below in _places_below(recorded, project):
            found = base / below
            if found.is_file():
                warnings.warn(
                    f"{recorded}, where the run's experiment was, is not there: taken from {found}",
                    NitroWarning,
                    stacklevel=3,
                )
                return found
    return None


def _places_below(recorded: Path, project: str | None) -> Iterator[Path]:
    if project is not None and recorded.is_relative_to(project):
        yield recorded.relative_to(project)
        return
    parts = recorded.parts[1:] if recorded.is_absolute() else recorded.parts
    for count in (3, 2, 1):
        if count <= len(parts):
            yield Path(*parts[-count:])
