"""The form of a `config.toml`, checked before anything of it is used."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nitro_cli.errors import ConfigError
from nitro_cli.registry.toml_text import TomlDocument, format_key_path

__all__ = ["CONFIG_FORMAT", "check_config"]

CONFIG_FORMAT = 2
"""Format 1 said how the class is imported, by a path of the machine that made the run."""

_Name = Annotated[str, Field(min_length=1, max_length=255)]
_Path = Annotated[str, Field(max_length=4096)]
_KeyPath = Annotated[str, Field(max_length=10_000)]


class _ConfigTable(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _ExperimentTable(_ConfigTable):
    name: _Name
    distribution: _Name | None = None
    source: _Path | None = None
    cwd: _Path | None = None
    preset: _Name | None = None
    import_: _Path | None = Field(None, alias="import")


class _Unwritten(_ConfigTable):
    type: str
    sha256: str


class _Config(_ConfigTable):
    format: Annotated[int, Field(ge=1)]
    experiment: _ExperimentTable
    fields: dict[_Name, Any] = {}
    schedules: dict[str, Any] | None = None
    unset: list[_KeyPath] = []
    at_home: list[_Name] = []
    types: dict[_Name, str] = {}
    origins: dict[_KeyPath, Annotated[str, Field(max_length=10_000)]] = {}
    unwritten: dict[_Name, _Unwritten] = {}


def check_config(document: TomlDocument) -> None:
    """Check that a TOML document has the form that a run's configuration has.

    Raises:
        ConfigError: it has not; every key that differs is named with its line.
    """
    written, path = document.data.get("format"), document.path
    if isinstance(written, int) and written > CONFIG_FORMAT:
        why = f"it has format {written}, this version reads up to {CONFIG_FORMAT}"
        raise ConfigError(f"{path} is of a newer nitro", where=str(path), why=why, fix="pip install -U jax-nitro")
    try:
        _Config.model_validate(document.data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        listed = [f"{_place(document, problem['loc'])}: {problem['msg']}" for problem in problems[:8]]
        raise ConfigError(
            f"{path} is not the configuration of a run",
            where=str(path),
            why="; ".join(listed) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else ""),
            fix="restore it from a copy; a checkpoint of the run carries one too",
        ) from None


def _place(document: TomlDocument, location: tuple[str | int, ...]) -> str:
    path = tuple(part for part in location if part != "[key]")
    line = document.line(path)
    return f"{format_key_path(path)[:200]}{f' (line {line})' if line else ''}"
