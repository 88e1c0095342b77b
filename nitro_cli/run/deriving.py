"""Values for fields that come from the data: computed by `derive`, or restored, below what a person set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nitro_cli.errors import ConfigError, HookError, nearest, warn
from nitro_cli.experiment import Experiment, check_graphconst, same_content, with_unset
from nitro_cli.run.description import described
from nitro_cli.run.plan import Settings
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import Source

__all__ = ["with_derived"]


def with_derived(
    settings: Settings, sources: Mapping[str, Any], source: Source | None, *, serving: bool, report: SetupReport
) -> Settings:
    """Give the fields that nobody set their derived values, and say where a value that was set differs.

    `weights` bring the derived values of their source along, and so does a live handle where there is no data; a resume
    computes them anew from its data.

    Args:
        settings: without derived values.
        sources: the data.
        source: where the weights come from.
        serving: there is no data to derive anything from.
        report: gets a row per value.

    Returns:
        The settings with them.

    Raises:
        HookError: `derive` returned no mapping, a name that is no field, or a value that the field cannot hold.
        ConfigError: a derived value of the record that is rebuilt is neither there nor computed.
    """
    derived = _restored(settings.experiment, source, serving)
    if derived is None and not serving and settings.hooks.has("derive"):
        settings = replace(settings, resolved=settings.resolved.before_derive())
        derived = _computed(settings, sources)
    if derived is not None:
        settings = _merged(settings, derived, report)
    if settings.resolved.awaited:
        raise ConfigError(
            f"{', '.join(settings.resolved.awaited)} was derived from data, and there is none here to derive it again",
            where=type(settings.experiment).__name__,
            why="the configuration could not hold the value",
            fix="give weights= the checkpoint, which holds it, or set the field",
        )
    return settings


def _restored(e: Experiment, source: Source | None, serving: bool) -> Mapping[str, Any] | None:
    """What the source of the weights had derived; None of a resume, and of a source with other fields or none."""
    fields = type(e).model_fields
    if source is None or source.kind == "resume" or (source.kind == "handle" and not serving):
        return None
    derived = {name: value for name, value in (source.derived or {}).items() if "." not in name}  # those are of parts
    return derived if derived and all(name in fields for name in derived) else None


def _computed(settings: Settings, sources: Mapping[str, Any]) -> Mapping[str, Any]:
    e = settings.experiment
    returned = settings.hooks.call(e, "derive", sources)
    if not isinstance(returned, Mapping):
        raise HookError(f"`derive` returned {type(returned).__name__}", fix="return a mapping of field names to values")
    fields = type(e).model_fields
    for name in returned:
        if name not in fields:
            raise HookError(
                f"`derive` returned {name!r}, which is no field of {type(e).__name__}",
                nearest=nearest(name, fields),
                fix=f"declare it: {name}: Device[...]",
            )
    return returned


def _merged(settings: Settings, derived: Mapping[str, Any], report: SetupReport) -> Settings:
    try:
        valid = with_unset(settings.experiment, derived)
    except ConfigError as error:
        fix = error.fix or "return values that the fields can hold"
        raise HookError(error.what, where="derive", why=error.why, fix=fix, nearest=error.nearest) from error
    found = {name: getattr(valid, name) for name in derived}
    set_by_hand = {name: value for name, value in found.items() if settings.resolved.explicit(name)}
    settings = replace(settings, resolved=settings.resolved.with_derived(found), derived={**settings.derived, **found})
    check_graphconst(settings.experiment)
    report.add("derived", [_row(settings, name) for name in derived])
    for name, value in set_by_hand.items():
        _tell(settings.experiment, name, value, settings.resolved.origin_text(name))
    return settings


def _row(settings: Settings, name: str) -> Mapping[str, Any]:
    used, origin = described(getattr(settings.experiment, name)), settings.resolved.origin_text(name)
    return {"field": name, "derived": described(settings.derived[name]), "used": used, "origin": origin}


def _tell(e: Experiment, name: str, derived: Any, origin: str) -> None:
    used = getattr(e, name)
    if not same_content(used, derived):
        warn(f"{name} is {described(used)} ({origin}), and `derive` returns {described(derived)}: what was set is used")
