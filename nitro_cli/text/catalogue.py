"""Catalogues: things that a configuration names by an id and a version."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from nitro_cli.errors import ConfigError, nearest

from .entry_points import DeclaredEntry, declared_entries

__all__ = ["Catalogue", "CatalogueEntry"]

_Thing = TypeVar("_Thing")
_Added = TypeVar("_Added")


@dataclass(frozen=True)
class CatalogueEntry:
    """One thing that a catalogue has, perhaps not imported yet.

    Attributes:
        id, version: what it is looked up by.
        import_path: `module:Name`.
        distribution: the installed distribution that declares it; None for what a program registered itself.
        error: why it cannot be used; None when nothing speaks against it.
    """

    id: str
    version: int
    import_path: str
    distribution: str | None = None
    error: str | None = None


class Catalogue(Generic[_Thing]):
    """Things by (id, version): those that code registers, and those that installed distributions declare.

    A distribution declares one by an entry point of the catalogue's group, called by the id, with `@2` behind it for
    version 2. It is imported when it is asked for.

    Args:
        noun: what one of them is called, such as `task`.
        group: the entry-point group, such as `nitro.tasks`.
        key: the key by which a table names the id.
        shipped: nitro's own, by the names that entry points would have: `module:Name`, imported when asked for.
    """

    def __init__(self, noun: str, group: str, *, key: str = "kind", shipped: Mapping[str, str] | None = None) -> None:
        self.noun = noun
        self.group = group
        self.key = key
        self._held: dict[tuple[str, int], _Thing] = {}
        self._shipped = {_parsed(name): DeclaredEntry(name, path, "nitro") for name, path in (shipped or {}).items()}

    def register(self, id: str, version: int = 1, *, replace: bool = False) -> Callable[[_Added], _Added]:
        """A decorator that puts what it decorates into the catalogue, so that configurations can name it.

        Args:
            id: the name that configurations write.
            version: 1 or more; a configuration without one means 1.
            replace: whether it may take the place of one that is there.

        Raises:
            ConfigError: the id or version cannot be one, or there is one already.
        """
        where = f"@register_{self.noun.split()[0]}({id!r}, version={version!r})"
        words = id.split(".") if isinstance(id, str) else [""]
        if not all(word.replace("-", "_").isidentifier() for word in words):
            fix = "use letters, digits, _ and -, in words with dots between them"
            raise ConfigError(f"{id!r} is no id for a {self.noun}", where=where, fix=fix)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ConfigError(f"{version!r} is no version of a {self.noun}", where=where, fix="use 1, 2, ...")

        def add(value: _Added) -> _Added:
            held = self._held.get((id, version))
            own = self._shipped.get((id, version))
            path = _import_path(held) if held is not None else own.import_path if own is not None else None
            same = _same_source(held, value) if held is not None else path in (None, _import_path(value))
            if not replace and not same:
                raise ConfigError(
                    f"there is a {self.noun} {_named(id, version)} already: {path}",
                    where=where,
                    fix="choose another id or version, or say replace=True",
                )
            self._held[id, version] = cast("_Thing", value)
            return value

        return add

    def find(self, id: str, version: int = 1) -> _Thing:
        """The thing of an id and version, imported if need be.

        Raises:
            ConfigError: there is none, and those there are are listed, and the nearest; or it cannot be imported, or
                several distributions declare it.
        """
        held = self._held.get((id, version))
        if held is not None:
            return held
        own = self._shipped.get((id, version))
        declared = [own] if own else [e for e in declared_entries(self.group) if _parsed(e.name) == (id, version)]
        if not declared:
            known = self.known_otherwise(id, version)
            if known is None:
                raise self._not_found(id, version)
            return known
        if len(declared) > 1:
            raise ConfigError(
                f"{len(declared)} distributions declare the {self.noun} {_named(id, version)}",
                where="; ".join(f"{entry.import_path} of {entry.distribution}" for entry in declared),
                fix="uninstall all but one, or register the one that is meant with replace=True",
            )
        loaded = self._loaded(declared[0])
        # The decorator in its module has registered it, under this name if all is well.
        return self._held.setdefault((id, version), loaded)

    def known_otherwise(self, id: str, version: int) -> _Thing | None:
        """What a catalogue knows beside what was registered or declared, such as the functions of a library."""
        return None

    def entries_otherwise(self) -> list[CatalogueEntry]:
        """All of that, for `entries`."""
        return []

    def id_of(self, value: _Thing) -> tuple[str, int] | None:
        """The id and version under which a thing was registered or found; None for what is not here."""
        return next((place for place, held in self._held.items() if held is value), None)

    def entries(self, env: Mapping[str, str] = os.environ) -> list[CatalogueEntry]:
        """All there are, by id and version; nothing is imported."""
        found = {place: CatalogueEntry(*place, entry.import_path) for place, entry in self._shipped.items()}
        found |= {place: CatalogueEntry(*place, _import_path(value)) for place, value in self._held.items()}
        listed = list(found.values())
        for entry in declared_entries(self.group, env):
            id, version = _parsed(entry.name)
            held = found.get((id, version))
            if held is not None and held.import_path == entry.import_path:
                listed.remove(held)
            hidden = f"nitro has a {self.noun} of this id" if (id, version) in self._shipped else None
            error = entry.error or hidden
            listed.append(CatalogueEntry(id, version, entry.import_path, entry.distribution, error))
        taken = {(entry.id, entry.version) for entry in listed}
        listed += [entry for entry in self.entries_otherwise() if (entry.id, entry.version) not in taken]
        return sorted(listed, key=lambda entry: (entry.id, entry.version, entry.import_path))

    def _loaded(self, entry: DeclaredEntry) -> Any:
        label = f"the {self.noun} {entry.name} of {entry.distribution}"
        if entry.error is not None:
            raise ConfigError(f"{label} is broken", where=entry.import_path, why=entry.error)
        module, _, name = entry.import_path.partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:  # whatever somebody else's module raises while it is imported
            raise ConfigError(
                f"{label} cannot be imported",
                where=entry.import_path,
                why=f"{type(error).__name__}: {error}",
                fix=f"reinstall or repair {entry.distribution}",
            ) from error
        return found

    def _not_found(self, id: str, version: int) -> ConfigError:
        known = [entry for entry in self.entries() if entry.error is None]
        of_id = [str(entry.version) for entry in known if entry.id == id]
        names = list(dict.fromkeys(entry.id for entry in known))
        there = f"{id} has the version{'s' if len(of_id) > 1 else ''} {', '.join(of_id)}" if of_id else None
        return ConfigError(
            f"there is no {self.noun} {_named(id, version)}",
            where=f"{self.key} = {id!r}",
            why=there or (f"there are: {', '.join(names)}" if names else f"no {self.noun} is registered or installed"),
            nearest=[] if of_id else nearest(id, names),
            fix=f"nitro list {self.group.rpartition('.')[2]} shows what there is",
        )


def _named(id: str, version: int) -> str:
    return id if version == 1 else f"{id}, version {version}"


def _parsed(name: str) -> tuple[str, int]:
    """Id and version of an entry point's name."""
    id, _, version = name.partition("@")
    return (id, int(version)) if version.isdecimal() else (name, 1)


def _import_path(value: Any) -> str:
    return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _same_source(held: Any, value: Any) -> bool:
    """Whether a definition ran again: a notebook cell, or a file that was run and is imported by another name."""
    name = getattr(held, "__qualname__", None)
    if name is None or name != getattr(value, "__qualname__", None):
        return False
    file = _file_of(held)
    return held.__module__ == value.__module__ or (file is not None and file == _file_of(value))


def _file_of(value: Any) -> str | None:
    return getattr(sys.modules.get(getattr(value, "__module__", "")), "__file__", None)
