"""The fields inside an experiment's parts, by dotted names such as `task.label_smoothing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError, nearest

from .kinds import FieldKind
from .part import Part
from .source import field_sources

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["PartField", "fields_inside", "graphconst_value", "parts_in", "parts_of", "replaced_inside", "with_leaves"]


@dataclass(frozen=True)
class PartField:
    """A field inside a part that holds no part itself.

    Args:
        path: its dotted name in the experiment.
        kind: what traced code sees of it.
        value: its value.
        owner: the class of the part.
        name: the field there.
    """

    path: str
    kind: FieldKind
    value: Any
    owner: type[Part]
    name: str

    @property
    def type(self) -> Any:
        """Its declared type without the marker."""
        return self.owner.model_fields[self.name].annotation

    @property
    def default(self) -> Any:
        """Its default in the part's class; None where it has to be given."""
        return self.owner.model_fields[self.name].get_default() if not self.required else None

    @property
    def required(self) -> bool:
        """Whether the part's class has no default for it."""
        return self.owner.model_fields[self.name].is_required()

    @property
    def doc(self) -> str | None:
        """What its declaration says by `Field(description=...)`, or else the string under it in the source file."""
        written = self.owner.model_fields[self.name].description
        homes = (cls for cls in self.owner.__mro__ if self.name in vars(cls).get("__annotations__", {}))
        home = next(homes, self.owner)
        # A method knows the file of its class, which may be a cell of a notebook.
        codes = [value.__code__ for value in vars(home).values() if isinstance(value, FunctionType)]
        if written or not codes:
            return written
        found = field_sources(codes[0].co_filename, codes[0].co_firstlineno, home.__qualname__).get(self.name)
        return None if found is None else found.doc


def parts_in(owner: BaseModel, names: Iterable[str]) -> Iterator[tuple[str, Part]]:
    """The parts that fields hold, alone or in a tuple, each with its dotted name inside the owner."""
    for name in names:
        value = owner.__dict__[name]
        if isinstance(value, Part):
            yield name, value
        else:
            yield from ((f"{name}.{item.label}", item) for item in _parts_of(value))


def parts_of(e: BaseModel) -> dict[str, Part]:
    """The parts of an experiment or a view of it, by dotted name."""
    return dict(parts_in(e, getattr(type(e), "__nitro_parts__", ())))


def fields_inside(owner: BaseModel, names: Iterable[str]) -> Iterator[PartField]:
    """Every field of the parts that fields hold, and of the parts in those, in declaration order."""
    for path, part in parts_in(owner, names):
        yield from _leaves(part, path)


def _leaves(part: Part, path: str) -> Iterator[PartField]:
    for name, kind in type(part).__nitro_part_kinds__.items():
        inner = list(parts_in(part, (name,)))
        for place, found in inner:
            yield from _leaves(found, f"{path}.{place}")
        if not inner:
            yield PartField(f"{path}.{name}", kind, part.__dict__[name], type(part), name)


def with_leaves(value: Any, path: str, change: Callable[[str, FieldKind, Any], Any]) -> Any:
    """What a field holds, with other values inside its parts; nothing is validated.

    Args:
        value: a part, a tuple with parts, or anything else, which stays.
        path: the field's dotted name.
        change: gives the value in the place of a leaf's, from its dotted name, its kind and its value.
    """
    if isinstance(value, tuple) and _parts_of(value):
        return tuple(with_leaves(v, f"{path}.{v.label}", change) if isinstance(v, Part) else v for v in value)
    if not isinstance(value, Part):
        return value
    values = dict(value.__dict__)
    for name, kind in type(value).__nitro_part_kinds__.items():
        held, place = values[name], f"{path}.{name}"
        values[name] = (
            with_leaves(held, place, change) if isinstance(held, Part) or _parts_of(held) else change(place, kind, held)
        )
    copy = type(value).__new__(type(value))
    object.__setattr__(copy, "__dict__", values)
    object.__setattr__(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__)
    object.__setattr__(copy, "__pydantic_extra__", None)
    object.__setattr__(copy, "__pydantic_private__", value.__pydantic_private__)
    return copy


def replaced_inside(value: Any, path: Sequence[str], new: Any, where: str) -> Any:
    """What a field holds, with another value at a place inside its parts, validated.

    Args:
        value: what the field holds.
        path: the names from it to the place.
        new: the value there.
        where: the field's dotted name, for errors.

    Raises:
        ConfigError: there is no such place, or the value cannot be used.
    """
    name, *rest = path
    if isinstance(value, Part) and (name in type(value).model_fields or type(value).open_names):
        inner = getattr(value, name, None)
        return value.replace(**{name: replaced_inside(inner, rest, new, f"{where}.{name}") if rest else new})
    if isinstance(value, tuple) and rest and any(item.label == name for item in _parts_of(value)):
        return tuple(
            replaced_inside(item, rest, new, f"{where}.{name}")
            if isinstance(item, Part) and item.label == name
            else item
            for item in value
        )
    known = type(value).model_fields if isinstance(value, Part) else [item.label for item in _parts_of(value)]
    raise ConfigError(
        f"{where} has no field {name!r}",
        where=".".join([where, *path]),
        nearest=[f"{where}.{found}" for found in nearest(name, known)],
    )


def graphconst_value(value: Any) -> Any:
    """What of a field's value belongs to the program's identity: of a part what it is, and its GraphConst fields."""
    if isinstance(value, Part):
        return {name: graphconst_value(held) for name, held in value.structure().items()}
    if isinstance(value, tuple) and _parts_of(value):
        return tuple(graphconst_value(item) for item in value)
    return value


def _parts_of(value: Any) -> list[Part]:
    return [item for item in value if isinstance(item, Part)] if isinstance(value, tuple) else []
