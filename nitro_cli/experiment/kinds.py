"""The three kinds of field, and the markers that declare them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from nitro_cli.errors import ConfigError

from .device_values import device_array

__all__ = ["Device", "FieldKind", "GraphConst", "Host", "KindMarker", "Private", "kind_of_annotation", "kind_of_field"]

T = TypeVar("T")


class FieldKind(StrEnum):
    """What traced code sees of a field."""

    GRAPHCONST = "graphconst"
    """The Python value, baked into the program as a literal; another value is another program."""

    DEVICE = "device"
    """A traced array input; a new value never recompiles. One that is None is no input, and baked."""

    HOST = "host"
    """Nothing: a sentinel that raises. A new value never recompiles."""


@dataclass(frozen=True)
class KindMarker:
    """The annotation metadata behind `Device[T]`, `GraphConst[T]`, `Host[T]` and `Private[T]`."""

    kind: FieldKind
    private: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = handler(source)
        if self.kind is not FieldKind.DEVICE:
            return schema
        check = _require_array_or_none if type(None) in get_args(source) else _require_array
        return core_schema.no_info_after_validator_function(check, schema)


def _require_array_or_none(value: Any) -> Any:
    return None if value is None else _require_array(value)


def _require_array(value: Any) -> Any:
    try:
        device_array(value)
    except ConfigError as error:
        raise PydanticCustomError("device_value", "{why}", {"why": error.what}) from None
    return value


# A type checker reads each of these as plain T.
GraphConst = Annotated[T, KindMarker(FieldKind.GRAPHCONST)]
Device = Annotated[T, KindMarker(FieldKind.DEVICE)]
Host = Annotated[T, KindMarker(FieldKind.HOST)]
Private = Annotated[T, KindMarker(FieldKind.HOST, private=True)]
"""A Host field that stays at home: in the run's own config.toml, never in a checkpoint, an artefact or a tracker."""


def _markers(annotation: Any) -> list[FieldKind]:
    return [m.kind for m in getattr(annotation, "__metadata__", ()) if isinstance(m, KindMarker)]


def _nested_markers(annotation: Any) -> list[FieldKind]:
    found: list[FieldKind] = []
    for argument in get_args(annotation):
        if isinstance(argument, KindMarker):
            continue
        found += _markers(argument) + _nested_markers(argument)
    return found


def kind_of_annotation(annotation: Any, name: str) -> FieldKind:
    """The kind that an evaluated annotation declares; `Host` without a marker.

    Raises:
        ConfigError: two markers, a marker inside the type instead of around it, or a marker without a type.
    """
    kinds = _markers(annotation)
    _check_kinds(kinds, _nested_markers(annotation), name)
    if kinds and isinstance(annotation.__origin__, TypeVar):
        raise ConfigError(
            f"field {name!r} has a marker without a type",
            fix=f"write the type, such as `{name}: Device[float]`",
        )
    return kinds[0] if kinds else FieldKind.HOST


def kind_of_field(info: FieldInfo, name: str, unmarked: FieldKind) -> FieldKind:
    """The kind of a field that pydantic has read; `unmarked` without a marker.

    Raises:
        ConfigError: two markers, or a marker inside the type instead of around it.
    """
    kinds = [m.kind for m in info.metadata if isinstance(m, KindMarker)]
    _check_kinds(kinds, [*_markers(info.annotation), *_nested_markers(info.annotation)], name)
    return kinds[0] if kinds else unmarked


def _check_kinds(kinds: list[FieldKind], nested: list[FieldKind], name: str) -> None:
    if len(set(kinds)) > 1:
        listed = " and ".join(k.value for k in dict.fromkeys(kinds))
        raise ConfigError(
            f"field {name!r} is marked {listed}",
            why="a field has exactly one kind",
            fix=f"keep one marker around the type of {name!r}",
        )
    if nested:
        marker = {"graphconst": "GraphConst", "device": "Device", "host": "Host"}[nested[0].value]
        raise ConfigError(
            f"field {name!r} has {marker}[...] inside its type",
            why="a kind belongs to the whole field",
            fix=f"put the marker around the whole type, such as `{name}: {marker}[int | None]`",
        )
