"""Which values of an experiment stay on this machine when a checkpoint or an artefact leaves it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from nitro_cli.experiment import Experiment, config_metadata

__all__ = ["holds_machine_path", "home_fields"]


def home_fields(e: Experiment) -> tuple[str, ...]:
    """The fields marked `Private`, the run directory, and those whose values hold a path of this machine."""
    return tuple(
        name
        for name, meta in config_metadata(type(e)).items()
        if (value := getattr(e, name)) is not None and (meta.private or name == "run_dir" or holds_machine_path(value))
    )


def holds_machine_path(value: Any) -> bool:
    """Whether an absolute path stands in a value: a path, a text that names what is there or lies in the working or
    home directory, or the address of a local file."""
    match value:
        case PurePath():
            return value.is_absolute()
        case str():
            return _is_machine_path(value)
        case Mapping():
            return any(holds_machine_path(part) for item in value.items() for part in item)
        case list() | tuple() | set() | frozenset():
            return any(holds_machine_path(part) for part in value)
    return any(holds_machine_path(part) for part in _attributes(value))


def _is_machine_path(text: str) -> bool:
    # A web address of a service, `/v1/predict`, is absolute too, and no path of anything here.
    if os.path.isabs(text) and os.path.lexists(text[:4096].split("\0")[0]):
        return True
    if text.startswith(("file:", "sqlite:")):
        return True
    return any(len(place) > 1 and place in text for place in (str(Path.cwd()), os.path.expanduser("~")))


def _attributes(value: Any) -> Iterable[Any]:
    """The fields of a nested model or dataclass."""
    fields = getattr(type(value), "model_fields", None) or getattr(type(value), "__dataclass_fields__", None)
    return () if fields is None else [getattr(value, name, None) for name in fields]
