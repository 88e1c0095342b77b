"""What is known about the fields of an experiment class: type, default, kind, documentation, source line."""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, get_args, get_origin, is_typeddict

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from nitro_cli.errors import ConfigError

from .experiment import KNOBS, Experiment
from .kinds import FieldKind, KindMarker
from .source import FieldSource, field_sources

__all__ = ["NO_DEFAULT", "FieldMeta", "config_metadata", "fields_of_kind", "type_text"]


class _NoDefault:
    _instance: _NoDefault | None = None

    def __new__(cls) -> _NoDefault:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()
"""The default of a field that must be given."""


@dataclass(frozen=True)
class FieldMeta:
    """One field of an experiment class.

    Args:
        name: the field.
        type: the declared type without its marker; `type_text` writes it out.
        default: the default, or `NO_DEFAULT`.
        kind: what traced code sees of it.
        knob: whether it is a run knob.
        owner: the name of the class that declares it last.
        description: what its declaration says by `Field(description=...)`.
        declaring: the classes that declare it, the last first.
        private: whether its value stays at home, as `Private[T]` says.
    """

    name: str
    type: Any
    default: Any
    kind: FieldKind
    knob: bool
    owner: str
    description: str | None = field(repr=False)
    declaring: tuple[type[Experiment], ...] = field(repr=False)
    private: bool = False

    @property
    def doc(self) -> str | None:
        """Its description, or else the string under the field; read from the source file when asked for."""
        written = (source.doc for source in self._sources() if source is not None and source.doc)
        return self.description or next(written, None)

    @property
    def line(self) -> int:
        """The line of the declaration in its file; 0 where the source is not available."""
        source = next(self._sources(), None)
        return 0 if source is None else source.line

    def _sources(self) -> Iterator[FieldSource | None]:
        return (_sources_of(cls).get(self.name) for cls in self.declaring)


def config_metadata(cls: type[Experiment]) -> dict[str, FieldMeta]:
    """One `FieldMeta` per field of `cls`, in declaration order, the run knobs first.

    Raises:
        ConfigError: `cls` is no class of an experiment.
    """
    if not isinstance(cls, type) or not hasattr(cls, "__nitro_kinds__"):
        raise ConfigError(f"{reprlib.repr(cls)} is no class of an experiment", fix="give the class: MyExperiment")
    found: dict[str, FieldMeta] = {}
    defaults = _defaults(cls)
    classes = [c for c in cls.__mro__ if "__nitro_own__" in vars(c)]
    for name, info in cls.model_fields.items():
        owners = tuple(c for c in classes if name in vars(c)["__nitro_own__"])
        found[name] = FieldMeta(
            name=name,
            type=info.annotation,
            default=defaults.get(name, NO_DEFAULT),
            kind=cls.__nitro_kinds__[name],
            knob=name in KNOBS,
            owner=owners[0].__name__ if owners else cls.__name__,
            description=info.description,
            declaring=owners,
            private=any(isinstance(m, KindMarker) and m.private for m in info.metadata),
        )
    return found


def _sources_of(cls: Any) -> dict[str, FieldSource]:
    filename, line = cls.__nitro_source__
    return field_sources(filename, line, cls.__qualname__)


def _defaults(cls: type[Experiment]) -> dict[str, Any]:
    # As validated: a default may be written in its TOML form, such as a table for an EarlyStopping.
    optional = {name: info for name, info in cls.model_fields.items() if not info.is_required()}
    if len(optional) == len(cls.model_fields):
        e = cls()
        return {name: getattr(e, name) for name in optional}
    return {
        name: _adapter(info).validate_python(info.get_default(call_default_factory=True, validated_data={}))
        for name, info in optional.items()
    }


def _adapter(info: FieldInfo) -> TypeAdapter[Any]:
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    of = info.annotation
    if isinstance(of, type) and (issubclass(of, BaseModel) or is_dataclass(of) or is_typeddict(of)):
        return TypeAdapter(annotation)  # it says itself what it allows
    return TypeAdapter(annotation, config={"arbitrary_types_allowed": True})


def fields_of_kind(cls: type[Experiment], kind: FieldKind | str) -> tuple[str, ...]:
    """The names of the fields of one kind, in declaration order."""
    wanted = FieldKind(kind)
    return tuple(name for name, found in cls.__nitro_kinds__.items() if found is wanted)


def type_text(annotation: Any) -> str:
    """A type as one writes it: `int | None`, `tuple[int, ...]`, `Literal['a', 'b']`."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_text(a) for a in arguments)
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(a) for a in arguments)}]"
    if origin is not None:
        if arguments and isinstance(arguments[0], list):
            inside = f"[{', '.join(type_text(a) for a in arguments[0])}], {type_text(arguments[1])}"
        else:
            inside = ", ".join(type_text(a) for a in arguments)
        return f"{getattr(origin, '__name__', str(origin))}[{inside}]" if inside else str(origin)
    name: str = getattr(annotation, "__name__", None) or str(annotation).removeprefix("typing.")
    return name.rsplit(".", 1)[-1] if isinstance(annotation, type) and name.replace(".", "_").isidentifier() else name
