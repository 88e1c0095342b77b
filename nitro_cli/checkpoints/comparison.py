"""Runs side by side, from their files: which fields differ, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, NotFoundError
from nitro_cli.registry import read_toml
from nitro_cli.text import user_path

from .manifest import load_manifest
from .recorded_history import read_history
from .summaries import RunSummary, summarize

__all__ = ["ComparedRun", "Comparison", "compare_runs"]

_MISSING = object()


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Args:
        path: its directory.
        fields: its configuration, flat: fields by name, schedules as `schedules.<key>`, what TOML cannot hold by type
            and digest.
        summary: what the manifest says of it; None where it does not list it.
        epochs: how many its history has.
        last: the numbers of the last one.
    """

    path: Path
    fields: Mapping[str, Any]
    summary: RunSummary | None
    epochs: int
    last: Mapping[str, int | float]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Args:
        runs: in the order asked for.
        differences: names of the fields that are not the same in all.
        same: names of those that are.
    """

    runs: tuple[ComparedRun, ...]
    differences: tuple[str, ...]
    same: tuple[str, ...]


def compare_runs(*runs: RunSummary | Path | str) -> Comparison:
    """Compare configurations and results of runs: `nitro compare` in Python. Needs no JAX.

    Args:
        runs: two or more, as `nitro_cli.runs` lists them or by their own directories, such as `runs/MnistMLP/a1b2c3d4`.

    Raises:
        ConfigError: fewer than two.
        NotFoundError: a run has no readable configuration.
        IntegrityError, IncompatibleError, StorageError: a file of a run is damaged or cannot be read.

    Example:
        >>> compare_runs(*runs("runs/MnistMLP")).differences  # doctest: +SKIP
        ('width',)
    """
    if len(runs) < 2:
        raise ConfigError(
            f"{'one run has' if runs else 'no runs have'} nothing to be compared with", fix="name two or more"
        )
    compared = tuple(_compared(run.path if isinstance(run, RunSummary) else user_path(run)) for run in runs)
    names = list(dict.fromkeys(name for run in compared for name in run.fields))
    differing = [name for name in names if len({repr(run.fields.get(name, _MISSING)) for run in compared}) > 1]
    return Comparison(compared, tuple(differing), tuple(name for name in names if name not in differing))


def _compared(path: Path) -> ComparedRun:
    fields = _configuration(path)
    summary = next((s for s in summarize(path.parent, load_manifest(path.parent)) if s.id == path.name), None)
    try:
        rows = list(read_history(path.parent, path.name))
    except NotFoundError:
        rows = []
    last = {name: value for name, value in (rows[-1] if rows else {}).items() if isinstance(value, int | float)}
    return ComparedRun(path, fields, summary, len(rows), last)


def _configuration(path: Path) -> dict[str, Any]:
    """The run's `config.toml`, flat; what is none is absent."""
    try:
        document = read_toml(path / "config.toml", follow=False).data
    except ConfigError as error:
        what = f"the run {path.name} has no readable configuration"
        raise NotFoundError(what, where=str(path / "config.toml"), why=error.why) from error
    about = document.get("experiment", {})
    flat = {key: about[key] for key in ("name", "preset") if key in about}
    for section in ("fields", "schedules"):
        flat |= _flattened("" if section == "fields" else "schedules.", document.get(section, {}))
    for name, held in document.get("unwritten", {}).items():
        flat[name] = f"{held.get('type')} {str(held.get('sha256'))[:8]}"
    flat.pop("run_dir", None)
    return flat


def _flattened(prefix: str, table: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flattened(f"{prefix}{key}.", value)
        else:
            flat[f"{prefix}{key}"] = value
    return flat
