"""The `config.toml` of a run: a resolved configuration that rebuilds the same experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from nitro_cli.errors import ConfigError, warn
from nitro_cli.experiment import (
    NO_DEFAULT,
    Experiment,
    FieldKind,
    config_metadata,
    fields_of_kind,
    same_content,
    validation_problems,
)
from nitro_cli.registry.config_schema import CONFIG_FORMAT, check_config
from nitro_cli.registry.discovery import ref_of
from nitro_cli.registry.layers import SCHEDULES, Layers
from nitro_cli.registry.origins import Origin, OriginKind
from nitro_cli.registry.overrides import ordered
from nitro_cli.registry.private_values import home_fields
from nitro_cli.registry.problems import WrittenProblem
from nitro_cli.registry.recorded import experiment_table, named_experiment, recorded_experiment
from nitro_cli.registry.resolution import finish
from nitro_cli.registry.resolved import Resolved
from nitro_cli.registry.sources import apply_overrides, apply_values
from nitro_cli.registry.toml_text import KeyPath, TomlDocument, format_key_path, read_toml, split_key_path
from nitro_cli.registry.toml_values import (
    NotWritable,
    is_numpy_like,
    list_as,
    natural_form,
    type_of_list,
    unwritten_digest,
    value_type,
    without_none,
)
from nitro_cli.registry.validation import layers_for
from nitro_cli.text import write_atomically

__all__ = ["CONFIG_FORMAT", "config_document", "exported_config", "read_config", "write_config"]

ORIGINS = "origins"


def config_document(resolved: Resolved, *, exported: bool = False) -> dict[str, Any]:
    """The document that `write_config` writes.

    `[experiment]` names the experiment and the preset, `[fields]` holds every field, the top-level `unset` the key
    paths that are none, `[schedules]` the schedules table when there is one, `[types]` what a list was (`tuple`,
    `float32[10]`) on a field whose annotation does not say it, `[origins]` where each value came from. A field whose
    TOML form would not validate to an equal value is listed under `[unwritten]` with its type and the SHA-256 of its
    content. Values that `derive` returned are those that were used; where there is data they are computed anew.

    Args:
        resolved: the configuration.
        exported: whether it leaves the run's directory, in a checkpoint or an artefact. It holds no path of this
            machine then: fields that stay at home are named under the top-level `at_home`, and only there.
    """
    cls = type(resolved.experiment)
    home = home_fields(resolved.experiment) if exported else ()
    values = {name: getattr(resolved.experiment, name) for name in config_metadata(cls)}
    rebuilding = _rebuilding(cls, values, _forms(cls, values))
    written = {name: form for name, form in rebuilding.items() if name not in home}
    fields = {name: form.kept for name, form in written.items() if form.kept is not None}
    unset = [format_key_path((name, *path)) for name, form in written.items() for path in form.removed]
    types = {name: form.type for name, form in written.items() if form.type is not None}
    unwritten = {
        name: {"type": value_type(value), "sha256": unwritten_digest(value)}
        for name, value in values.items()
        if name not in rebuilding and name not in home
    }
    experiment = experiment_table(cls, exported=exported)
    if resolved.preset is not None:
        experiment["preset"] = resolved.preset
    document: dict[str, Any] = {"format": CONFIG_FORMAT}
    if unset:
        document["unset"] = unset
    if home:
        document["at_home"] = list(home)
    document |= {"experiment": experiment, "fields": fields}
    schedules, unwritten_schedules = _written_schedules(resolved.schedules)
    if schedules is not None:
        document[SCHEDULES] = schedules
    unwritten |= unwritten_schedules
    if types:
        document["types"] = types
    document[ORIGINS] = resolved.recorded_origins()
    if unwritten:
        document["unwritten"] = unwritten
    return document


@dataclass(frozen=True)
class _Form:
    """A field's TOML form: the value without its none keys, where those are, and the type that TOML does not say."""

    kept: Any
    removed: list[tuple[str, ...]]
    full: Any
    type: str | None = None


def _forms(cls: type[Experiment], values: Mapping[str, Any]) -> dict[str, _Form]:
    """Per field that has one, its TOML form; an array on a Host field has none."""
    host = fields_of_kind(cls, FieldKind.HOST)
    forms = {}
    for name, value in values.items():
        if name in host and is_numpy_like(value):
            continue
        with contextlib.suppress(NotWritable, RecursionError):
            full = natural_form(value)
            forms[name] = _Form(*without_none(full), full)
    return forms


def _rebuilding(cls: type[Experiment], values: Mapping[str, Any], forms: Mapping[str, _Form]) -> dict[str, _Form]:
    """The forms that are read as an equal value again, the type noted of those that need it."""
    plain = _reread(cls, values, {name: form.full for name, form in forms.items()})
    typed = {name: replace(forms[name], type=type_of_list(values[name])) for name in forms if name not in plain}
    inputs = {name: list_as(form.full, form.type) for name, form in typed.items() if form.type is not None}
    again = _reread(cls, values, {name: value for name, value in inputs.items() if value is not None})
    return {name: forms[name] if name in plain else typed[name] for name in forms if name in plain or name in again}


def _reread(cls: type[Experiment], values: Mapping[str, Any], inputs: Mapping[str, Any]) -> set[str]:
    """The fields that the class makes the same value of, given these inputs."""
    refused = {found.path[0] for found in validation_problems(cls, {**values, **inputs}) if found.path}
    accepted = {name: value for name, value in inputs.items() if name not in refused}
    again = cls(**{**values, **accepted})
    return {name for name in accepted if same_content(getattr(again, name), values[name])}


def _written_schedules(schedules: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    if schedules is None:
        return None, {}
    table: dict[str, Any] = {}
    for key, value in schedules.items():
        try:
            table[key], removed = without_none(natural_form(value))
        except NotWritable:
            return None, {SCHEDULES: {"type": value_type(value), "sha256": unwritten_digest(value)}}
        if () in removed:
            del table[key]
    return table, {}


def exported_config(resolved: Resolved) -> str:
    """The text of a configuration as checkpoints and artefacts carry it; see `config_document`."""
    return tomli_w.dumps(config_document(resolved, exported=True))


def write_config(path: Path, resolved: Resolved) -> None:
    """Write a configuration, atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    write_atomically(path, tomli_w.dumps(config_document(resolved)).encode())


def read_config(
    path: Path,
    sets: Iterable[str] = (),
    unsets: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    cls: type[Experiment] | None = None,
    experiment: str | None = None,
) -> Resolved:
    """Rebuild the experiment that a `config.toml` records, with overrides over it.

    The environment and `[tool.nitro]` are not read. Relative paths are those of the working directory of the record,
    where that directory still exists. A field under `[unwritten]` is taken from an override, or from the class default
    when that has the recorded digest; one under `at_home` from an override or the class default.

    Args:
        path: the file.
        sets: the words after each `--set`.
        unsets: the words after each `--unset`.
        flags: values of knob flags by field name; None is a flag that was not given.
        cls: the class, when it is at hand; otherwise it is found by the recorded name.
        experiment: what a person names it by in the place of that name; see `find_experiment`.

    Raises:
        IntegrityError: the file is a link or no regular file.
        ConfigError: the file is no record of this format, its values do not fit the class any more, or a field cannot
            be rebuilt.
        ExperimentNotFoundError: the class cannot be found.

    Warns:
        NitroWarning: a value stayed at home when the file left its run, and the class default stands for it.
    """
    document = read_toml(path, follow=False)
    check_config(document)
    if cls is not None:
        ref = ref_of(cls)
    elif experiment is not None:
        ref = named_experiment(experiment)
    else:
        ref = recorded_experiment(document.data["experiment"], path)
    cls = ref.load()
    layers = layers_for(cls)
    held = _recorded_origins(layers, document)
    _apply_record(layers, document, held)
    apply_overrides(layers, ordered(sets, unsets))
    apply_values(layers, flags or {}, OriginKind.FLAG)
    awaited = _awaited(layers, document, held)
    _refuse_unwritten(cls, layers, document, awaited)
    _tell_what_stayed_home(cls, layers, document)
    preset = document.data["experiment"].get("preset")
    return replace(finish(ref, cls, layers, preset), awaited=awaited)


def _apply_record(layers: Layers, document: TomlDocument, held: Mapping[KeyPath, str]) -> None:
    folder = document.data["experiment"].get("cwd")
    moved = isinstance(folder, str) and folder != str(Path.cwd()) and Path(folder).is_dir()
    base = Path(folder) if moved else None

    def origin(path: KeyPath, of: KeyPath | None = None) -> Origin:
        of = of or path[1:]
        was = held.get(of) or held.get(of[:1], "")
        return Origin(OriginKind.RECORD, "", document.path, document.line(path), base, was)

    def inner(name: str) -> dict[KeyPath, Origin]:
        return {path: origin(("origins", format_key_path(path)), path) for path in held if path[0] == name and path[1:]}

    for name, value in document.data.get("fields", {}).items():
        layers.put((name,), value, origin(("fields", name)), inner(name))
    for name, text in document.data.get("types", {}).items():
        typed = list_as(layers.fields.get(name), text)
        if typed is None:
            message = f"should be a list that makes a {text}"
            layers.problems.append(WrittenProblem((name,), message, origin=origin(("fields", name))))
        else:
            layers.fields[name] = typed
    for index, text in enumerate(document.data.get("unset", [])):
        try:
            path, _ = split_key_path(text)
        except ValueError as problem:
            layers.problems.append(
                WrittenProblem(("unset", index), f"is no key: {problem}", origin=origin(("unset", index)))
            )
        else:
            layers.put(path, None, origin(("unset", index), path))
    if SCHEDULES in document.data:
        layers.put((SCHEDULES,), document.data[SCHEDULES], origin((SCHEDULES,), (SCHEDULES,)), inner(SCHEDULES))


def _recorded_origins(layers: Layers, document: TomlDocument) -> dict[KeyPath, str]:
    """The `[origins]` table by key path; empty for a record of before it was kept."""
    held: dict[KeyPath, str] = {}
    for key, text in document.data.get(ORIGINS, {}).items():
        message = f"should begin with one of {', '.join(OriginKind)}, got {text!r}"
        if text.partition(":")[0] in set(OriginKind):
            try:
                held[split_key_path(key)[0]] = text
                message = ""
            except ValueError as problem:
                message = f"is no key: {problem}"
        if message:
            place = Origin(OriginKind.RECORD, "", document.path, document.line((ORIGINS, key)))
            layers.problems.append(WrittenProblem((ORIGINS, key), message, origin=place))
    return held


def _awaited(layers: Layers, document: TomlDocument, held: Mapping[KeyPath, str]) -> tuple[str, ...]:
    """The fields under `[unwritten]` that were derived, and are derived or restored again."""
    unwritten = [name for name in document.data.get("unwritten", {}) if name not in layers.fields]
    return tuple(name for name in unwritten if held.get((name,)) == OriginKind.DERIVED)


def _tell_what_stayed_home(cls: type[Experiment], layers: Layers, document: TomlDocument) -> None:
    metadata = config_metadata(cls)
    home = document.data.get("at_home", [])
    missing = [n for n in home if n in metadata and n not in layers.fields and not metadata[n].knob]
    named = ", ".join(missing)
    needed = [name for name in missing if metadata[name].default is NO_DEFAULT]
    fix = " ".join(f"--set {name}=..." for name in needed or missing)
    if needed:
        raise ConfigError(
            f"{cls.__name__} cannot be rebuilt: {', '.join(needed)} stayed on the machine that made it",
            where=f"{document.path}: at_home",
            why="the field has no default",
            fix=fix,
        )
    if named:
        warn(
            f"{named} of {document.path.name} stayed on the machine that made it: the class default is used; "
            f"{fix} gives another value"
        )


def _refuse_unwritten(cls: type[Experiment], layers: Layers, document: TomlDocument, awaited: Collection[str]) -> None:
    metadata = config_metadata(cls)
    lost = []
    for name, entry in document.data.get("unwritten", {}).items():
        overridden = layers.schedules is not None if name == SCHEDULES else name in layers.fields
        default = metadata[name].default if name in metadata else NO_DEFAULT
        same = default is not NO_DEFAULT and unwritten_digest(default) == entry.get("sha256")
        if not (overridden or same or name in awaited):
            lost.append((name, entry.get("type", "an object")))
    if lost:
        names = ", ".join(name for name, _ in lost)
        raise ConfigError(
            f"{cls.__name__} cannot be rebuilt: {names} {'is' if len(lost) == 1 else 'are'} not in the record",
            where=f"{document.path}: [unwritten]",
            why="; ".join(f"{name} is {kind}, which TOML cannot write" for name, kind in lost),
            fix=f"build the experiment in Python with the same {names}, or give a value with --set",
        )
