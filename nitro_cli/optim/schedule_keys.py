"""What the keys of a schedules mapping mean: an optimizer hyperparameter, a Device field or a gradient rule's field."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nitro_cli.errors import ScheduleError, nearest

__all__ = ["Binding", "KeySpace", "candidate_names", "flat_schedules", "resolve_keys"]

QUALIFIERS = ("opt", "device", "grad", "bind")

# what other libraries call them
OTHER_NAMES = {"lr": "learning_rate", "eta": "learning_rate", "wd": "weight_decay", "lambda": "weight_decay"}


@dataclass(frozen=True)
class Binding:
    """Where one schedule goes.

    Attributes:
        key: as the user wrote it.
        space: `"opt"`, `"device"`, `"grad"` or `"bind"`.
        name: the hyperparameter or field.
        groups: with `opt`, the parameter groups it sets.
    """

    key: str
    space: str
    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeySpace:
    """Every name that a schedule can bind to.

    Attributes:
        groups: per trained group, the optimizer hyperparameters it takes by name.
        open_groups: groups whose hook may read any name.
        device: Device fields that hold scalars.
        grad: fields of the gradient rule.
        refused: other fields of the experiment, with the reason each cannot be scheduled.
        binds: whether `grad_rule` takes numbers to place itself, under any name.
    """

    groups: Mapping[str, Collection[str]]
    open_groups: Collection[str]
    device: Collection[str]
    grad: Collection[str]
    refused: Mapping[str, str]
    binds: bool = False

    def optimizer_groups(self, name: str) -> tuple[str, ...]:
        """The groups that take the hyperparameter `name`."""
        return tuple(group for group, names in self.groups.items() if name in names)

    def every_name(self) -> set[str]:
        """All bare names."""
        return {n for names in self.groups.values() for n in names} | set(self.device) | set(self.grad)


def flat_schedules(schedules: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules with nested tables (`{"opt": {"head": {"learning_rate": ...}}}`) as dotted keys.

    Raises:
        ScheduleError: a key is not text, or two spellings give the same key.
    """
    flat: dict[str, Any] = {}
    if not isinstance(schedules, Mapping):
        raise ScheduleError(
            f"schedules is {type(schedules).__name__}", fix="return a mapping of keys to schedules, {} for none"
        )

    def walk(prefix: str, table: Mapping[str, Any]) -> None:
        for key, value in table.items():
            if not isinstance(key, str):
                raise ScheduleError(f"the schedule key {key!r} is not text")
            full = f"{prefix}{key}"
            nested = isinstance(value, Mapping) and "kind" not in value
            if nested and (prefix or key in QUALIFIERS):
                walk(f"{full}.", value)
            elif full in flat:
                raise ScheduleError(f"the schedule {full!r} is given twice", fix="keep one spelling of it")
            else:
                flat[full] = value

    walk("", schedules)
    return flat


def candidate_names(keys: Collection[str], group: str) -> set[str]:
    """The names that may be hyperparameters of `group`, read off the keys alone."""
    names: set[str] = set()
    for key in keys:
        first, _, rest = key.partition(".")
        if first == "opt" and rest:
            owner, _, name = rest.rpartition(".")
            if owner in ("", group):
                names.add(name)
        elif first not in ("device", "grad", "bind"):
            names.add(key)
    return names


def resolve_keys(keys: Collection[str], space: KeySpace) -> list[Binding]:
    """Bind every key; `opt.<group>.<key>` takes its group away from the bare key.

    Raises:
        ScheduleError: a key is unknown, ambiguous, names a Host or GraphConst field, or a group without leaves.
    """
    bindings = [_resolve(key, space) for key in keys]
    own = {(b.name, b.groups[0]) for b in bindings if _names_group(b.key)}
    result: list[Binding] = []
    taken: dict[tuple[str, str, str], str] = {}
    for binding in bindings:
        if binding.space == "opt" and not _names_group(binding.key):
            left = tuple(g for g in binding.groups if (binding.name, g) not in own)
            binding = Binding(binding.key, "opt", binding.name, left)
        for target in binding.groups or ("",):
            place = (binding.space, binding.name, target)
            if place in taken:
                raise ScheduleError(
                    f"the schedules {taken[place]!r} and {binding.key!r} bind the same value",
                    fix="keep one of the two spellings",
                )
            taken[place] = binding.key
        if binding.space != "opt" or binding.groups:
            result.append(binding)
    return result


def _names_group(key: str) -> bool:
    return key.startswith("opt.") and "." in key[len("opt.") :]


def _resolve(key: str, space: KeySpace) -> Binding:
    first, _, rest = key.partition(".")
    if first in QUALIFIERS and rest:
        spaces = {"opt": _optimizer_key, "device": _device_key, "grad": _grad_key, "bind": _bind_key}
        return spaces[first](key, rest, space)
    groups = space.optimizer_groups(key)
    forms = [
        *([f"opt.{key}"] if groups else []),
        *([f"device.{key}"] if key in space.device else []),
        *([f"grad.{key}"] if key in space.grad else []),
    ]
    if len(forms) > 1:
        meanings = {"opt": "an optimizer hyperparameter", "device": "a Device field", "grad": "a gradient rule's field"}
        raise ScheduleError(
            f"the schedule key {key!r} is ambiguous",
            why=f"it names {' and '.join(meanings[form.partition('.')[0]] for form in forms)}",
            fix=f"write {' or '.join(repr(form) for form in forms)}",
        )
    if groups:
        return Binding(key, "opt", key, groups)
    if key in space.device:
        return Binding(key, "device", key)
    if key in space.grad:
        return Binding(key, "grad", key)
    if key in space.refused:
        raise _refused_field(key, key, space)
    raise _unknown(key, key, space.every_name(), _listed(space))


def _optimizer_key(key: str, rest: str, space: KeySpace) -> Binding:
    group, _, name = rest.rpartition(".")
    if not group:
        groups = space.optimizer_groups(name) or tuple(g for g in space.groups if g in space.open_groups)
        if not groups:
            names = {n for names in space.groups.values() for n in names}
            raise _unknown(key, name, names, _listed(space))
        return Binding(key, "opt", name, groups)
    if group not in space.groups:
        raise ScheduleError(
            f"the schedule {key!r} names the group {group!r}, which no trained parameter is in",
            why=f"the groups are: {', '.join(space.groups)}",
            fix="name one of them, or let param_group return this one",
            nearest=nearest(group, space.groups),
        )
    if name not in space.groups[group] and group not in space.open_groups:
        raise _unknown(key, name, space.groups[group], f"the optimizer of {group!r} takes")
    return Binding(key, "opt", name, (group,))


def _device_key(key: str, name: str, space: KeySpace) -> Binding:
    if name in space.device:
        return Binding(key, "device", name)
    if name in space.refused:
        raise _refused_field(key, name, space)
    raise _unknown(key, name, space.device, "the scalar Device fields are")


def _grad_key(key: str, name: str, space: KeySpace) -> Binding:
    if name in space.grad:
        return Binding(key, "grad", name)
    raise _unknown(key, name, space.grad, "the gradient rule has the fields")


def _bind_key(key: str, name: str, space: KeySpace) -> Binding:
    if space.binds:
        return Binding(key, "bind", name)
    raise ScheduleError(
        f"the schedule key {key!r} binds to nothing",
        why="`bind` holds numbers that the experiment places itself, and its grad_rule takes none",
        fix=f"define grad_rule(self, hp) and read hp.bind.{name}",
    )


def _refused_field(key: str, name: str, space: KeySpace) -> ScheduleError:
    return ScheduleError(
        f"the field {name!r} cannot be scheduled",
        where=f"schedule {key!r}",
        why=space.refused[name],
        fix=f"mark it Device to schedule it: {name}: Device[float]",
    )


def _unknown(key: str, name: str, names: Collection[str], lead: str) -> ScheduleError:
    listed: Sequence[str] = sorted(names)
    return ScheduleError(
        f"the schedule key {key!r} binds to nothing",
        why=f"{lead} {', '.join(listed) or 'none'}",
        fix="use the optax argument's own name, a Device field's or a gradient rule field's",
        nearest=nearest(name, listed) or {OTHER_NAMES.get(name, "")} & set(listed),
    )


def _listed(space: KeySpace) -> str:
    return "a key is an optimizer hyperparameter, a scalar Device field or a gradient rule's field; there are"
