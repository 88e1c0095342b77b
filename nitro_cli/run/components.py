"""What of a run has a state of its own beside the arrays of training: in every checkpoint, given back on a resume."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.checkpoints import CheckpointRecord, RecordedComponent, encode_value
from nitro_cli.errors import ComponentError, ConfigError, HookError, nearest, warn
from nitro_cli.experiment import Experiment, HookTable
from nitro_cli.run.restore import Source

__all__ = ["ComponentLoads", "Components", "ResumeStatus", "asked_components"]

_ARRAYS = "extra/components"
_OWN = ("early_stop", "schedules", "monitor")
"""Components of every run: an older record may lack them, and a resume may do without."""

_ARRAY = "$array"


@dataclass(frozen=True)
class ResumeStatus:
    """How a handle began.

    Attributes:
        kind: `fresh`, `resumed` or `weights`.
        source: the checkpoint or handle that it began with, or None.
        epoch, step: where that stood.
        restored: the components that went on from it.
        fresh: the components that began anew.
    """

    kind: str
    source: str | None = None
    epoch: int = 0
    step: int = 0
    restored: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source | None, restored: tuple[str, ...], fresh: tuple[str, ...]) -> ResumeStatus:
        """That of a handle with this source."""
        if source is None:
            return cls("fresh", fresh=fresh)
        meta = source.record.meta
        kind = "resumed" if source.kind == "resume" else "weights"
        return cls(kind, source.text, meta.epoch or 0, meta.step or 0, restored, fresh)


def asked_components(hooks: HookTable, e: Experiment) -> dict[str, Any]:
    """What the hook `components` returns.

    Raises:
        HookError: it is no mapping of names to objects with `state` and `load_state`.
        ConfigError: a name is taken.
    """
    found = hooks.call(e, "components")
    if not isinstance(found, Mapping):
        raise HookError(f"`components` returned {type(found).__name__}", fix="return a mapping of names to objects")
    for name, component in found.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise HookError(f"`components` names one {name!r}", fix="use letters, digits, '_', '-' and '.'")
        if name in _OWN or name.startswith("callbacks."):
            raise ConfigError(
                f"{name!r} is a component of nitro's", where="components(self)", fix="choose another name"
            )
        for method in ("state", "load_state"):
            if not callable(getattr(component, method, None)):
                raise HookError(
                    f"the component {name!r} has no {method}()",
                    where="components(self)",
                    why=f"it is a {type(component).__name__}",
                    fix="give it state() and load_state(state, version)",
                )
    return dict(found)


class Components:
    """The components of one handle, by name: objects with `state()` and `load_state(state, version)`.

    Args:
        held: by name.
    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        self._held = dict(held)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def epoch_row(self, sums: Mapping[str, float]) -> dict[str, Any]:
        """What those of them that say something of an epoch add to its row."""
        tellers = [component for component in self._held.values() if hasattr(component, "epoch_row")]
        return {name: value for teller in tellers for name, value in teller.epoch_row(sums).items()}

    def recorded(self, *, leaving: str) -> tuple[dict[str, RecordedComponent], dict[str, np.ndarray]]:
        """Their states as a record keeps them: JSON values, and the arrays by the path of a leaf.

        Args:
            leaving: the component that has another place in a record.

        Raises:
            HookError: a state holds what is neither.
        """
        states: dict[str, RecordedComponent] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, component in self._held.items():
            if name == leaving:
                continue
            state = _without_arrays(component.state(), f"{_ARRAYS}/{name}", arrays)
            try:
                encode_value(state, f"components.{name}")
            except ConfigError as error:
                raise HookError(
                    f"the state of the component {name!r} cannot be kept",
                    where=error.where,
                    why=error.why,
                    fix="return mappings with text as keys, lists, text, numbers, booleans, None and arrays",
                ) from None
            states[name] = RecordedComponent(version=_version(component), required=_required(component), state=state)
        return states, arrays

    def planned(self, source: Source) -> ComponentLoads:
        """What a resume will load, checked against both sides; nothing is touched.

        Raises:
            ComponentError: lists what is missing, too new, or refused by `check_state`.

        Warns:
            NitroWarning: an optional one is missing on either side.
        """
        kept, problems = states_in(source.record), []
        loads: dict[str, tuple[Any, int]] = {}
        for name, component in self._held.items():
            if name not in kept:
                if _required(component):
                    near = nearest(name, kept)
                    problems.append(f"{name}: not in the checkpoint{f', which has {near[0]}' if near else ''}")
                elif name not in _OWN:
                    warn(f"{source.text} has no state of the component {name!r}: it starts fresh")
                continue
            version, state = kept[name].version, kept[name].state
            if version > _version(component):
                problems.append(f"{name}: version {version} in the checkpoint, {_version(component)} here")
                continue
            check = getattr(component, "check_state", None)
            if check is not None:
                problems += [f"{name}: {problem}" for problem in check(copy.deepcopy(state), version) or ()]
            loads[name] = (state, version)
        for name, found in kept.items():
            if name not in self._held and found.required:
                problems.append(f"{name}: in the checkpoint, and this run has no such component")
            elif name not in self._held and name not in _OWN:
                warn(f"{source.text} has the component {name!r}, which this run has not")
        if problems:
            raise ComponentError(
                "the components of the run and of the checkpoint differ",
                where=source.text,
                why="\n    ".join(problems),
                fix="resume with the components that the run was trained with, or take the weights alone: weights=...",
            )
        return ComponentLoads(self._held, loads, source.text)


@dataclass(frozen=True)
class ComponentLoads:
    """What a resume loads, planned.

    Attributes:
        held: the components.
        states: state and version by name.
        source: what they come from.
    """

    held: Mapping[str, Any]
    states: Mapping[str, tuple[Any, int]]
    source: str

    def load(self) -> None:
        """Load all of them; if one raises, all get the state back that they had.

        Raises:
            ComponentError: names the one that raised.
        """
        before = {name: copy.deepcopy(self.held[name].state()) for name in self.states}
        touched = []
        for name, (state, version) in self.states.items():
            touched.append(name)
            try:
                self.held[name].load_state(copy.deepcopy(state), version)
            except Exception as error:
                for back in touched:
                    self.held[back].load_state(before[back], _version(self.held[back]))
                raise ComponentError(
                    f"the component {name!r} does not take its state back",
                    where=self.source,
                    why=f"{type(error).__name__}: {error}",
                    fix="all components are as they were before; resume with the code that wrote the checkpoint",
                ) from error


def states_in(record: CheckpointRecord) -> dict[str, RecordedComponent]:
    """The components of a record, arrays in their places."""
    meta = record.meta
    kept = {
        name: found.model_copy(update={"state": _with_arrays(found.state, record.arrays)})
        for name, found in meta.components.items()
    }
    if meta.rules.early_stop is not None:
        kept["early_stop"] = RecordedComponent(version=1, required=False, state=meta.rules.early_stop)
    return kept


def _version(component: Any) -> int:
    return int(getattr(component, "version", 1))


def _required(component: Any) -> bool:
    return bool(getattr(component, "required", True))


def _without_arrays(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value with a copy of each array in `arrays`, and where it is in its place."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        # By number: a key may be no name for a file.
        path = f"{place}/{len(arrays)}"
        arrays[path] = np.array(value, copy=True)
        return {_ARRAY: path}
    if isinstance(value, Mapping):
        return {key: _without_arrays(item, place, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, place, arrays) for item in value]
    return value


def _with_arrays(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_ARRAY}:
            return np.array(arrays[value[_ARRAY]], copy=True)
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    return [_with_arrays(item, arrays) for item in value] if isinstance(value, list) else value
