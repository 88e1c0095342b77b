"""The layers of a configuration: project, presets, environment, overrides, flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import KNOBS
from nitro_cli.registry.layers import SCHEDULES, Layers
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.overrides import Override, parse_value
from nitro_cli.registry.preset_files import PresetFile
from nitro_cli.registry.problems import WrittenProblem
from nitro_cli.registry.toml_text import KeyPath, read_toml

__all__ = [
    "apply_environment",
    "apply_overrides",
    "apply_preset",
    "apply_project",
    "apply_values",
    "find_project",
]

ENVIRONMENT_PREFIX = "NITRO_"


def find_project(cwd: Path | None = None) -> Path | None:
    """The nearest `pyproject.toml` in the working directory or above it."""
    folder = (cwd or Path.cwd()).absolute()
    return next((f for f in (p / "pyproject.toml" for p in (folder, *folder.parents)) if f.is_file()), None)


def apply_project(layers: Layers, project: Path) -> None:
    """Apply `[tool.nitro]` of a `pyproject.toml`, which sets run knobs.

    Raises:
        ConfigError: the file is not TOML.
    """
    document = read_toml(project)
    tool = document.data.get("tool")
    table = tool.get("nitro", {}) if isinstance(tool, dict) else {}

    def origin(path: KeyPath) -> Origin:
        return Origin(OriginKind.PROJECT, "tool.nitro", project, document.line(("tool", "nitro", *path)))

    if not isinstance(table, dict):
        layers.problems.append(
            WrittenProblem(("tool", "nitro"), f"should be a table, got {table!r}", origin=origin(()))
        )
        return
    for name, value in table.items():
        if name in KNOBS:
            layers.put((name,), value, origin((name,)), _inner((name,), value, origin))
        else:
            why = "is no run knob; [tool.nitro] sets run knobs only"
            layers.problems.append(WrittenProblem((name,), why, nearest(name, KNOBS), origin=origin((name,))))


def apply_preset(layers: Layers, preset: PresetFile) -> None:
    """Apply one preset file: first what it unsets, then its fields, then its schedules whole."""
    for path, message, close in preset.problems:
        layers.problems.append(WrittenProblem(path, message, close, origin=preset.origin(path)))
    for index, path in enumerate(preset.unset):
        layers.put(path, None, preset.origin(("unset", index)))
    for name, value in preset.fields.items():
        if name == SCHEDULES:
            why = "is not a field; schedules are a table of their own, [schedules]"
            layers.problems.append(WrittenProblem(("fields", name), why, origin=preset.origin(("fields", name))))
            continue
        layers.put(
            (name,),
            value,
            preset.origin(("fields", name)),
            _inner((name,), value, lambda path: preset.origin(("fields", *path))),
        )
    if preset.schedules is not None:
        layers.put((SCHEDULES,), preset.schedules, preset.origin((SCHEDULES,)), _schedule_origins(preset))


def _inner(path: KeyPath, value: Any, origin: Any) -> dict[KeyPath, Origin]:
    """The origins of all keys and elements inside a value."""
    found: dict[KeyPath, Origin] = {}
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found[(*path, key)] = origin((*path, key))
        found.update(_inner((*path, key), inner, origin))
    return found


def _schedule_origins(preset: PresetFile) -> dict[KeyPath, Origin]:
    """As `_inner`, with keys like `"opt.learning_rate"` under the key path that their dotted form has."""
    found: dict[KeyPath, Origin] = {}
    for path, origin in _inner((SCHEDULES,), preset.schedules, preset.origin).items():
        first, key, *rest = path
        segments = str(key).split(".") if str(key).partition(".")[0] in ("opt", "grad", "device", "bind") else [key]
        found.setdefault((first, *segments, *rest), origin)
    return found


def apply_environment(layers: Layers, env: Mapping[str, str]) -> None:
    """Apply `NITRO_<KNOB>` variables; an empty one counts as not given.

    Raises:
        ConfigError: a value opens a TOML string, list or table and does not close it.
    """
    for name in KNOBS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        text = env.get(variable, "")
        if text.strip():
            layers.put((name,), parse_value(text, variable), Origin(OriginKind.ENVIRONMENT, f"{variable}={text}"))


def apply_overrides(layers: Layers, overrides: Sequence[Override]) -> None:
    """Apply `--set` and `--unset`, in the order given."""
    known = [*layers.names, SCHEDULES]
    for override in overrides:
        origin = Origin(OriginKind.SET, override.text)
        first = override.path[0]
        if first not in known:
            what = "unknown field; the first part is a field or schedules"
            layers.problems.append(WrittenProblem(override.path, what, nearest(first, known), origin=origin))
        elif override.path == (SCHEDULES,) and not override.removes and not isinstance(override.value, dict):
            layers.problems.append(
                WrittenProblem(override.path, f"should be a table, got {override.value!r}", origin=origin)
            )
        else:
            layers.put(override.path, override.value, origin)


def apply_values(layers: Layers, values: Mapping[str, Any], kind: OriginKind) -> None:
    """Apply Python values: flags (a None is a flag that was not given) or keywords (a None is none).

    Raises:
        ConfigError: a flag or keyword is not a field.
    """
    for name, value in values.items():
        shown = f"--{name.replace('_', '-')}" if kind is OriginKind.FLAG else name
        if name not in layers.names:
            raise ConfigError(f"{shown} is not a field", where=shown, nearest=nearest(name, layers.names))
        if value is not None or kind is not OriginKind.FLAG:
            layers.put((name,), value, Origin(kind, shown))
