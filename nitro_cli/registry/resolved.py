"""`Resolved`: an experiment with the origin of each value, and what may win over what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import NO_DEFAULT, Experiment, config_metadata, part_fields, same_content, with_unset
from nitro_cli.registry.discovery import ExperimentRef
from nitro_cli.registry.layers import SCHEDULES
from nitro_cli.registry.origins import Origin, OriginKind

__all__ = ["Resolved"]


@dataclass(frozen=True)
class Resolved:
    """One experiment with all its values, each with its origin; kept whole from the command line to the run's record.

    Attributes:
        experiment: the experiment.
        cls: its class.
        import_path: how another process imports the class.
        preset: the preset's name.
        schedules: schedule per key, a number or a table with `kind`; None leaves them to the class's `schedules` hook.
        origins: where each field came from; a key inside a field, such as `early_stop.patience`, has an entry of its
            own when it was written apart from the field. Fields without an entry hold the class default.
        ref: how the experiment was found.
        awaited: fields that were derived and that the record could not hold: `derive` or a checkpoint gives them.
    """

    experiment: Experiment
    cls: type[Experiment]
    import_path: str
    preset: str | None = None
    schedules: dict[str, Any] | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    ref: ExperimentRef | None = None
    awaited: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.ref.name if self.ref is not None else self.cls.__name__

    @property
    def class_name(self) -> str:
        """The name of its class, which run directories, preset folders and JSON documents carry."""
        return self.cls.__name__

    def origin(self, name: str) -> Origin:
        """The origin of a field, or of a key inside one; the class default when nothing set it."""
        found = self.origins.get(name)
        if found is None and "." in name:
            return self.origin(name.rpartition(".")[0])
        return found or Origin(OriginKind.DEFAULT)

    def origin_text(self, name: str) -> str:
        """The origins of a field and of the keys inside it, for people."""
        parts = [str(self.origin(name))]
        inside = (f"{name}.", f"{name}[")
        parts += [f"{key}: {origin}" for key, origin in self.origins.items() if key.startswith(inside)]
        return "; ".join(parts)

    def explicit(self, name: str) -> bool:
        """Whether a person set a field, whole or in part: such a value wins over what `derive` returns."""
        return any(origin.explicit for key, origin in self.origins.items() if _field_of(key) == name)

    @property
    def schedules_origin(self) -> str:
        """The layer that the schedules come from; `class` for those of the hook."""
        found = [origin for key, origin in self.origins.items() if _field_of(key) == SCHEDULES]
        return "class" if self.schedules is None or not found else str(found[0].first_kind)

    def recorded_origins(self) -> dict[str, str]:
        """Per key path where the value came from, for a record: every field, and the keys set apart from theirs."""
        fields = {name: self.origin(name).recorded for name in config_metadata(self.cls)}
        return fields | {key: origin.recorded for key, origin in self.origins.items()}

    def with_values(self, values: Mapping[str, Any]) -> Resolved:
        """With other values for the named fields, set as keywords.

        Raises:
            ConfigError: an unknown field, or a value that cannot be used.
        """
        return self._changed(
            self.experiment.replace(**values), {name: Origin(OriginKind.KEYWORD, name) for name in values}
        )

    def with_schedules(self, schedules: Mapping[str, Any], preset: str | None = None) -> Resolved:
        """With other schedules: those of a preset, or set as a keyword.

        Raises:
            ConfigError: they are no mapping.
        """
        if not isinstance(schedules, Mapping):
            raise ConfigError(
                f"schedules is a {type(schedules).__name__}",
                where="schedules=",
                fix="give a mapping of keys to schedules, {} for none",
            )
        origin = Origin(OriginKind.KEYWORD, SCHEDULES) if preset is None else Origin(OriginKind.PRESET, preset)
        origins = {SCHEDULES: origin}
        return replace(self._changed(self.experiment, origins), schedules=dict(schedules))

    def taking(self, name: str, other: Resolved) -> Resolved:
        """With one field as `other` has it, its origin included."""
        experiment = with_unset(self.experiment, {name: getattr(other.experiment, name)})
        held = {key: origin for key, origin in other.origins.items() if _field_of(key) == name}
        return self._changed(experiment, held or {name: Origin(OriginKind.DEFAULT)})

    def before_derive(self) -> Resolved:
        """As it was before `derive`, for computing the derived values anew: class defaults in their place."""
        defaults = {name: meta.default for name, meta in config_metadata(self.cls).items()}
        derived = [name for name in self._derived() if name in defaults]
        values = {name: defaults[name] for name in derived if defaults.get(name, NO_DEFAULT) is not NO_DEFAULT}
        origins = {key: origin for key, origin in self.origins.items() if _field_of(key) not in derived}
        return replace(self, experiment=with_unset(self.experiment, values), origins=origins)

    def with_open_parts(self) -> Resolved:
        """With the class defaults in the place of what was filled in inside its parts, for filling them in anew."""
        leaves = {leaf.path: leaf.default for leaf in part_fields(self.experiment)}
        derived = [name for name in self._derived() if name in leaves]
        experiment = with_unset(self.experiment, {name: leaves[name] for name in derived})
        origins = {key: origin for key, origin in self.origins.items() if key not in derived}
        return replace(self, experiment=experiment, origins=origins)

    def with_filled_parts(self, values: Mapping[str, Any]) -> Resolved:
        """With derived values for fields inside its parts, by dotted names."""
        experiment = with_unset(self.experiment, values)
        return self._changed(experiment, {name: Origin(OriginKind.DERIVED) for name in values})

    def _derived(self) -> list[str]:
        return [name for name, origin in self.origins.items() if origin.first_kind is OriginKind.DERIVED]

    def with_derived(self, values: Mapping[str, Any]) -> Resolved:
        """With derived values for the fields that nobody set.

        Args:
            values: valid values by field name, as `derive` returned or a checkpoint holds them.
        """
        used = {name: value for name, value in values.items() if not self.explicit(name)}
        experiment = with_unset(self.experiment, used)
        for name in list(used):
            # A record that says no origins: a value that nothing changed stays what it was, perhaps a person's.
            told = self.origin(name).first_kind is OriginKind.RECORD
            if told and same_content(getattr(experiment, name), getattr(self.experiment, name)):
                del used[name]
        changed = self._changed(experiment, {name: Origin(OriginKind.DERIVED) for name in used})
        return replace(changed, awaited=tuple(name for name in self.awaited if name not in values))

    def _changed(self, experiment: Experiment, origins: Mapping[str, Origin]) -> Resolved:
        kept = {key: origin for key, origin in self.origins.items() if not any(_is_at(key, new) for new in origins)}
        return replace(self, experiment=experiment, origins={**kept, **origins})


def _is_at(key: str, place: str) -> bool:
    """Whether a key path names a place, or one inside it."""
    return key == place or key.startswith((f"{place}.", f"{place}["))


def _field_of(key: str) -> str:
    """The field, or `schedules`, at the start of a key path."""
    return key.partition(".")[0].partition("[")[0]
