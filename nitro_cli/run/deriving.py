"""Values for fields that come from the data: computed by `derive`, or restored, below what a person set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import ConfigError, HookError, nearest, warn
from nitro_cli.experiment import Experiment, check_graphconst, same_content, with_unset
from nitro_cli.run.facts import described
from nitro_cli.run.parts import Parts

__all__ = ["merge_derived"]


def merge_derived(parts: Parts, *, serving: bool) -> None:
    """Give the fields that nobody set their derived values, and say where a value that was set differs.

    `weights` bring the derived values of their source along, and so does a live handle where there is no data; a resume
    computes them anew from its data.

    Args:
        parts: its `resolved` and `derived` are filled in.
        serving: there is no data to derive anything from.

    Raises:
        HookError: `derive` returned no mapping.
        ConfigError: it returned a name that is no field, or a value that the field cannot hold; or a derived value of
            the record that is rebuilt is neither there nor computed.
    """
    derived = _restored(parts, serving)
    if derived is None and not serving and parts.hooks.has("derive"):
        parts.resolved = parts.resolved.before_derive()
        derived = _computed(parts)
    if derived is not None:
        _merge(parts, derived)
    if parts.resolved.awaited:
        raise ConfigError(
            f"{', '.join(parts.resolved.awaited)} was derived from data, and there is none here to derive it again",
            where=type(parts.experiment).__name__,
            why="the configuration could not hold the value",
            fix="give weights= the checkpoint, which holds it, or set the field",
        )


def _restored(parts: Parts, serving: bool) -> Mapping[str, Any] | None:
    """What the source of the weights had derived; None of a resume, and of a source with other fields or none."""
    source, fields = parts.source, type(parts.experiment).model_fields
    if source is None or source.kind == "resume" or (source.kind == "handle" and not serving) or not source.derived:
        return None
    return source.derived if all(name in fields for name in source.derived) else None


def _computed(parts: Parts) -> Mapping[str, Any]:
    e = parts.experiment
    returned = parts.hooks.call(e, "derive", parts.sources)
    if not isinstance(returned, Mapping):
        raise HookError(f"`derive` returned {type(returned).__name__}", fix="return a mapping of field names to values")
    fields = type(e).model_fields
    for name in returned:
        if name not in fields:
            raise ConfigError(
                f"`derive` returned {name!r}, which is no field of {type(e).__name__}",
                nearest=nearest(name, fields),
                fix=f"declare it: {name}: Device[...]",
            )
    return returned


def _merge(parts: Parts, derived: Mapping[str, Any]) -> None:
    valid = with_unset(parts.experiment, derived)
    parts.derived = {name: getattr(valid, name) for name in derived}
    set_by_hand = {name: value for name, value in parts.derived.items() if parts.resolved.explicit(name)}
    parts.resolved = parts.resolved.with_derived(parts.derived)
    check_graphconst(parts.experiment)
    parts.report.add("derived", [_row(parts, name) for name in derived])
    for name, value in set_by_hand.items():
        _tell(parts.experiment, name, value, parts.resolved.origin_text(name))


def _row(parts: Parts, name: str) -> Mapping[str, Any]:
    used, origin = described(getattr(parts.experiment, name)), parts.resolved.origin_text(name)
    return {"field": name, "derived": described(parts.derived[name]), "used": used, "origin": origin}


def _tell(e: Experiment, name: str, derived: Any, origin: str) -> None:
    used = getattr(e, name)
    if not same_content(used, derived):
        warn(f"{name} is {described(used)} ({origin}), and `derive` returns {described(derived)}: what was set is used")
