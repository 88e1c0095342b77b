"""What `nitro presets` does: check all, show one, compare two, write a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from nitro_cli.errors import ConfigError, NitroError, PresetError, nearest
from nitro_cli.experiment import (
    NO_DEFAULT,
    FieldKind,
    FieldMeta,
    PartField,
    check_configuration,
    config_metadata,
    part_fields,
    same_content,
    type_text,
)
from nitro_cli.registry.discovery import ExperimentRef, list_experiments
from nitro_cli.registry.layers import SCHEDULES
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.path_values import paths_seen_from
from nitro_cli.registry.preset_files import list_presets, preset_chain, preset_path
from nitro_cli.registry.problems import PresetProblem, WrittenProblem, unique
from nitro_cli.registry.resolution import chain_problems, resolve
from nitro_cli.registry.resolved import Resolved
from nitro_cli.registry.toml_text import format_key_path
from nitro_cli.registry.toml_values import NotWritable, natural_form, without_none
from nitro_cli.text import write_atomically

__all__ = ["FieldRow", "PresetDifference", "check_presets", "diff_presets", "field_rows", "new_preset", "show_preset"]


@dataclass(frozen=True)
class FieldRow:
    """One field of a resolved experiment, as `nitro show` tells it.

    Attributes:
        name: the field.
        kind: `graphconst`, `device` or `host`.
        type: its type, as text.
        value: its value.
        default: the class default; NO_DEFAULT when it has none.
        origin: where the value came from.
        origin_text: the same for people, keys inside the value included.
        doc: its documentation.
    """

    name: str
    kind: str
    type: str
    value: Any
    default: Any
    origin: Origin
    origin_text: str
    doc: str


@dataclass(frozen=True)
class PresetDifference:
    """One key on which two presets differ; a side without the key holds None and no origin."""

    key: str
    left: Any
    right: Any
    left_origin: Origin | None
    right_origin: Origin | None


def check_presets(
    refs: Iterable[ExperimentRef] | None = None,
    cwd: Path | None = None,
    further: Callable[[Resolved], None] = lambda resolved: None,
) -> list[PresetProblem]:
    """Validate every preset of every experiment, by all that can be told without data.

    Args:
        refs: the experiments; all that are found when None, and then a folder of the working directory's `presets/`
            that no experiment owns is a problem too.
        cwd: the working directory.
        further: what else to check of a preset that fits; it raises ConfigError.

    Returns:
        All problems; none when every preset fits. An experiment that cannot be imported is one.
    """
    everything = refs is None
    refs = list_experiments(cwd) if refs is None else list(refs)
    problems: list[PresetProblem] = []
    for ref in refs:
        try:
            ref.load(cwd)
        except NitroError as problem:
            why = problem.why or problem.what
            problems.append(PresetProblem(ref.name, "", ref.file, None, "", f"the experiment cannot be loaded: {why}"))
            continue
        for name in list_presets(ref, cwd):
            problems += _problems_of(ref, name, cwd) or _unusable(ref, name, cwd, further)
    if everything:
        problems += _orphans(refs, cwd or Path.cwd())
    return list(dict.fromkeys(problems))


def _problems_of(ref: ExperimentRef, name: str, cwd: Path | None) -> list[PresetProblem]:
    path = preset_path(ref, name, cwd)
    try:
        found = unique(chain_problems(ref, name, cwd))
    except PresetError as problem:  # a file of the chain is not TOML
        return [PresetProblem(ref.name, name, path, None, "", f"{problem.what}: {problem.why}")]
    return [_preset_problem(ref, name, path, problem) for problem in found]


def _unusable(
    ref: ExperimentRef, name: str, cwd: Path | None, further: Callable[[Resolved], None]
) -> list[PresetProblem]:
    """Why a preset whose values fit their fields would be refused by setup."""
    try:
        resolved = resolve(ref, name, env={}, project=None, cwd=cwd)
        check_configuration(resolved.experiment)
        further(resolved)
    except ConfigError as problem:
        message = problem.what if problem.why is None else f"{problem.what}: {problem.why}"
        return [PresetProblem(ref.name, name, preset_path(ref, name, cwd), None, "", message, problem.nearest)]
    return []


def _preset_problem(ref: ExperimentRef, name: str, path: Path, problem: WrittenProblem) -> PresetProblem:
    origin = problem.origin or Origin(OriginKind.PRESET, name, path)
    key = format_key_path(problem.path)
    return PresetProblem(ref.name, origin.name, origin.file, origin.line, key, problem.message, problem.nearest)


def _orphans(refs: Iterable[ExperimentRef], cwd: Path) -> list[PresetProblem]:
    known = {name for ref in refs for name in (ref.name, ref.class_name)}
    folder = cwd / "presets"
    message = "these presets belong to no experiment"
    return [
        PresetProblem(inner.name, "", inner, None, "", message, nearest(inner.name, known))
        for inner in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if inner.is_dir() and inner.name not in known and any(inner.glob("*.toml"))
    ]


def field_rows(resolved: Resolved) -> list[FieldRow]:
    """The fields of a resolved experiment, in declaration order, the Device fields inside a part behind it."""
    rows: list[FieldRow] = []
    inside = [leaf for leaf in part_fields(resolved.experiment) if leaf.kind is FieldKind.DEVICE]
    for name, meta in config_metadata(resolved.cls).items():
        rows.append(_field_row(resolved, name, meta))
        rows += [_inner_row(resolved, leaf) for leaf in inside if leaf.path.startswith(f"{name}.")]
    return rows


def _inner_row(resolved: Resolved, leaf: PartField) -> FieldRow:
    return FieldRow(
        name=leaf.path,
        kind=str(leaf.kind),
        type=type_text(leaf.type),
        value=leaf.value,
        default=NO_DEFAULT if leaf.required else leaf.default,
        origin=resolved.origin(leaf.path),
        origin_text=resolved.origin_text(leaf.path),
        doc=leaf.doc or "",
    )


def _field_row(resolved: Resolved, name: str, meta: FieldMeta) -> FieldRow:
    return FieldRow(
        name=name,
        kind=str(meta.kind),
        type=type_text(meta.type),
        value=getattr(resolved.experiment, name),
        default=meta.default,
        origin=resolved.origin(name),
        origin_text=resolved.origin_text(name),
        doc=meta.doc or "",
    )


def show_preset(
    ref: ExperimentRef, name: str, cwd: Path | None = None
) -> tuple[str, dict[str, tuple[Any, Origin]], dict[str, tuple[Any, Origin]]]:
    """What a preset sets, its `extends` chain included.

    Returns:
        The description, and per field and per schedule key the value with its origin.

    Raises:
        PresetNotFoundError: there is no such preset.
        PresetError: the preset does not fit.
    """
    resolved = resolve(ref, name, env={}, project=None, cwd=cwd)
    fields = {
        key: (getattr(resolved.experiment, key), resolved.origins[key])
        for key in config_metadata(resolved.cls)
        if key in resolved.origins
    }
    around = resolved.origin(SCHEDULES)
    schedules = {
        key: (value, resolved.origins.get(f"{SCHEDULES}.{key}", around))
        for key, value in (resolved.schedules or {}).items()
    }
    return preset_chain(ref, name, cwd)[0].description, fields, schedules


def diff_presets(ref: ExperimentRef, left: str, right: str, cwd: Path | None = None) -> list[PresetDifference]:
    """The fields and schedule keys on which two presets of one experiment differ.

    Raises:
        PresetNotFoundError: there is no such preset.
        PresetError: one of them does not fit.
    """
    one = resolve(ref, left, env={}, project=None, cwd=cwd)
    two = resolve(ref, right, env={}, project=None, cwd=cwd)
    differences = []
    for name in config_metadata(one.cls):
        a, b = getattr(one.experiment, name), getattr(two.experiment, name)
        if not same_content(a, b):
            differences.append(PresetDifference(name, a, b, one.origin(name), two.origin(name)))
    a_table, b_table = one.schedules or {}, two.schedules or {}
    for key in dict.fromkeys((*a_table, *b_table)):
        if a_table.get(key) != b_table.get(key):
            full = f"{SCHEDULES}.{key}"
            origins = [side.origins.get(full, side.origins.get(SCHEDULES)) for side in (one, two)]
            sides = [o if key in table else None for o, table in zip(origins, (a_table, b_table), strict=True)]
            differences.append(PresetDifference(full, a_table.get(key), b_table.get(key), *sides))
    return differences


def new_preset(
    resolved: Resolved,
    name: str,
    *,
    description: str = "",
    extends: str | None = None,
    cwd: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a preset that gives a resolved experiment, in the working directory's `presets/<Experiment>/`.

    Written are the fields that differ from the class default, or from the parent where one is extended.

    Args:
        resolved: the configuration.
        name: the new preset's name: letters, digits, `-`, `_` and dots inside.
        description: what it is for.
        extends: the name of its parent.
        cwd: the working directory.
        overwrite: whether an existing file is replaced.

    Returns:
        The file.

    Raises:
        ConfigError: the name is none, the file exists, or TOML cannot write a changed field.
        PresetError: the parent does not fit.
    """
    cwd = (cwd or Path.cwd()).absolute()
    if not name or name.startswith(".") or not all(c.isalnum() or c in "-_." for c in name):
        raise ConfigError(f"{name!r} is no name for a preset", fix="use letters, digits, - and _")
    path = cwd / "presets" / resolved.name / f"{name}.toml"
    if path.exists() and not overwrite:
        fix = "choose another name, or replace it with --force"
        raise ConfigError(f"preset {name} exists", where=str(path), fix=fix)
    parent = None
    if extends is not None:
        parent = resolve(resolved.ref or resolved.cls, extends, env={}, project=None, cwd=cwd)
    document = _new_document(resolved, parent, description, extends, path.parent, cwd)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, tomli_w.dumps(document).encode())
    return path


def _new_document(
    resolved: Resolved, parent: Resolved | None, description: str, extends: str | None, folder: Path, cwd: Path
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    unset: list[str] = []
    for key, meta in config_metadata(resolved.cls).items():
        value = getattr(resolved.experiment, key)
        base = getattr(parent.experiment, key) if parent is not None else meta.default
        if base is not NO_DEFAULT and same_content(value, base):
            continue
        form, removed = _preset_form(key, value)
        unset += [format_key_path((key, *path)) for path in removed if not path]
        if form is not None:
            fields[key] = paths_seen_from(folder, form, value, cwd)
    document: dict[str, Any] = {}
    if description:
        document["description"] = description
    if extends is not None:
        document["extends"] = extends
    if unset:
        document["unset"] = unset
    document["fields"] = fields
    if resolved.schedules is not None and (parent is None or parent.schedules != resolved.schedules):
        document[SCHEDULES] = _preset_form(SCHEDULES, resolved.schedules)[0]
    return document


def _preset_form(key: str, value: Any) -> tuple[Any, list[tuple[str, ...]]]:
    try:
        return without_none(natural_form(value))
    except NotWritable as problem:
        raise ConfigError(
            f"a preset cannot hold {key}", where=key, why=f"TOML has no form for it: {problem}", fix=f"leave {key} out"
        ) from None
