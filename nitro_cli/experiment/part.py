"""`Part`: a frozen model in a field of an experiment, which supplies hooks that the experiment does not write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, GetCoreSchemaHandler, PydanticUserError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nitro_cli.errors import ConfigError, NitroError
from nitro_cli.text import Catalogue

from .declared import Declared, RowSpec
from .kinds import FieldKind, kind_of_field
from .signatures import BatchField, HookSignature
from .strict_model import StrictModel, unboxed
from .strictness import strict_scalars

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

__all__ = ["Hook", "Part"]

_VERSION = "version"


@dataclass(frozen=True)
class Hook:
    """What a part supplies for one hook.

    Args:
        function: called with the hook's positional arguments, and with the batch fields by keyword.
        fields: keyword to the batch field that it stands for: a name, several of which the first that the batch has
            counts, or a `BatchField`. None reads the function's keyword-only parameters, as an experiment's are read.
        with_experiment: whether the function gets the experiment, as the hook's `self`, before its other arguments.
        residency: of a metric hook, whether it runs on the `host` or, traced, on the `device`; None is its default.
        follows: the hook whose result it takes: it is supplied only where the part supplies that one too.
    """

    function: Callable[..., Any]
    fields: Mapping[str, str | tuple[str, ...] | BatchField] | None = None
    with_experiment: bool = False
    residency: Literal["host", "device"] | None = None
    follows: str | None = None

    def signature(self, name: str, owner: str) -> HookSignature:
        """The batch fields that it takes.

        Args:
            name: the hook.
            owner: what supplies it, for errors.

        Raises:
            RoutingError: the function's positional parameters are not the ones the hook is called with.
        """
        if self.fields is not None:
            return HookSignature(name, {keyword: _field(field) for keyword, field in self.fields.items()}, owner=owner)
        parameters = list(inspect.signature(self.function).parameters.values())
        return HookSignature.of(name, parameters[self.with_experiment :], owner)


def _field(field: str | tuple[str, ...] | BatchField) -> BatchField:
    if isinstance(field, BatchField):
        return field
    return BatchField((field,) if isinstance(field, str) else field)


class _PartMeta(ModelMetaclass):
    """Makes the classes of parts, and says what a value without a type is meant to be."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **words: Any) -> Any:
        try:
            return super().__new__(mcs, name, bases, body, **words)
        except PydanticUserError as error:
            if error.code != "model-field-missing-annotation":
                raise
            found = re.search(r"`(\w+) = ", error.message)
            field = found[1] if found else "a value"
            raise ConfigError(
                f"{name}.{field} has no type",
                where=f"{body.get('__module__')}.{name}",
                why="a name without a type is neither a field nor a counter",
                fix=f"an option: `{field}: int = ...`; what changes: `_{field}: int = ...`; a constant: ClassVar",
            ) from None


class Part(StrictModel, metaclass=_PartMeta):
    """A part of an experiment: fields, and the hooks that follow from them.

    An unmarked field is GraphConst: another value is another program. A `Device[...]` field is a traced input of the
    programs, known to the experiment as `<field>.<name>`, and a `Host[...]` field is read on the host alone. A
    `Device[float | None]` that is None is no input, and baked as a GraphConst field is.

    A family of parts, such as tasks, is a direct subclass with a `catalogue` of its own. A field of that type takes any
    part of the family, in TOML as a table that names it, or as the name alone.

    Raises:
        ConfigError: on construction, listing every value that cannot be used.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = None
    """Where parts of this family are looked up by (id, version); None for a part that tables need not name."""

    precedence: ClassVar[int] = 0
    """Of parts that supply one hook the one with the greatest counts; two of the same are refused."""

    open_names: ClassVar[bool] = False
    """Whether it takes names beside those of its fields, as an optimizer takes the options of its factory."""

    unmarked: ClassVar[FieldKind] = FieldKind.GRAPHCONST
    """What an unmarked field is."""

    on_host: ClassVar[bool] = False
    """Whether no program depends on parts of this family, which then supply no hooks."""

    kept_by: ClassVar[tuple[str, ...]] = ()
    """Its fields that the files of `kept_files` follow from: a run does not go on with others."""

    __nitro_part_kinds__: ClassVar[dict[str, FieldKind]] = {}

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**unboxed(type(self), values))

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise ConfigError(
                f"{type(self).__name__}.{name} cannot be set",
                where=type(self).__qualname__,
                why="a part is what a configuration says, and stays so",
                fix=f"keep what changes in a private attribute: declare `_{name}` in the class; `replace` makes a copy",
            )
        super().__setattr__(name, value)

    def hooks(self) -> Mapping[str, Hook]:
        """The hooks that the part supplies, by name. It is called on views too, whose Device fields are traced."""
        return {}

    def directions(self) -> Mapping[str, str]:
        """Of each metric that it reports, by name, whether more or less is better."""
        return {}

    def declares(self, data: Mapping[str, Any]) -> Declared:
        """What it tells the other parts.

        Args:
            data: what `build_data` returned; empty where there is no data.
        """
        return Declared()

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> Mapping[str, Any]:
        """Values for fields of its own that are open, by name; they are recorded as derived.

        It is asked until no part has another value, so it may rest on what others fill in. A field that is written
        is compared, and refused where it disagrees.

        Args:
            data: what `build_data` returned; empty where there is no data.
            batch: the fields of its first batch, as `prepare` leaves them; empty where there is no data.
            declared: what all parts say.

        Raises:
            ConfigError: a written value disagrees; it names both.
        """
        return {}

    def kept_files(self, data: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Files that a run keeps in its directory, by name, because what they hold must not be made again, such as a
        trained tokenizer; argument as of `declares`."""
        return {}

    def with_kept(self, files: Mapping[str, bytes]) -> Self:
        """The part as it goes on with what a run kept, for `build_data`.

        Args:
            files: by name, checked.
        """
        return self

    def notes(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the setup report says of it, by name; argument as of `declares`."""
        return {}

    def identity(self) -> dict[str, Any]:
        """What names the part in a table: `kind` and, other than 1, `version`; empty where it is in no catalogue."""
        catalogue = type(self).catalogue
        found = None if catalogue is None else catalogue.id_of(type(self))
        if catalogue is None or found is None:
            return {}
        return {catalogue.key: found[0]} | ({_VERSION: found[1]} if found[1] != 1 else {})

    def structure(self) -> dict[str, Any]:
        """What of it is the program's identity: what names it, and its GraphConst fields; parts stand for theirs. A
        Device field that is None is no input of the program, so it is named too."""
        named = self.identity() or {"class": f"{type(self).__module__}:{type(self).__qualname__}"}
        return named | {name: getattr(self, name) for name in type(self).model_fields if self.is_baked(name)}

    def is_baked(self, name: str) -> bool:
        """Whether a field is part of the program: GraphConst, or Device and None."""
        kind = type(self).__nitro_part_kinds__[name]
        return kind is FieldKind.GRAPHCONST or (kind is FieldKind.DEVICE and self.__dict__[name] is None)

    @property
    def label(self) -> str:
        """What reports call it: its id, or else its class."""
        return str(next(iter(self.identity().values()), type(self).__name__))

    def replace(self, **values: Any) -> Self:
        """A copy with other values for the named fields, validated like a new one.

        Raises:
            ConfigError: an unknown field, or a value that cannot be used.
        """
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})

    @classmethod
    def class_of(cls, table: Any) -> type[Part]:
        """The class that a table names, this one where it names none that there is."""
        if cls.catalogue is None or not isinstance(table, Mapping) or cls.catalogue.key not in table:
            return cls
        try:
            return _looked_up(cls, table[cls.catalogue.key], table.get(_VERSION, 1))
        except PydanticCustomError:
            return cls

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.__nitro_part_kinds__ = {
            name: kind_of_field(info, f"{cls.__name__}.{name}", cls.unmarked) for name, info in cls.model_fields.items()
        }
        private = [n for n, f in cls.model_fields.items() if any(getattr(m, "private", False) for m in f.metadata)]
        if private:
            raise ConfigError(
                f"field {private[0]!r} of the part {cls.__name__} is Private",
                where=cls.__qualname__,
                why="a part is recorded whole, so nothing of it stays at home alone",
                fix="put the value into a Private field of the experiment",
            )
        taken = () if cls.catalogue is None else cls.model_fields.keys() & {_VERSION, cls.catalogue.key}
        if taken:
            raise ConfigError(
                f"field {min(taken)!r} of the part {cls.__name__} is called like the key that names parts in tables",
                where=cls.__qualname__,
                fix="rename the field",
            )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cls.__nitro_read__(strict_scalars(handler(source), handler, cls))

    @classmethod
    def __nitro_read__(cls, inner: CoreSchema) -> CoreSchema:
        """The schema of a field of this type, from that of the class alone."""
        # A field of the family's type is dumped as what it holds, with the key that names it.
        dumped = core_schema.plain_serializer_function_ser_schema(_dumped)
        return core_schema.no_info_wrap_validator_function(cls._read, inner, serialization=dumped)

    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        """Validate a table, the id alone, or a part; a table may name another class of the family."""
        if isinstance(value, str) and cls.catalogue is not None and "catalogue" in vars(cls):
            value = {cls.catalogue.key: value}
        if not isinstance(value, Mapping) or cls.catalogue is None:
            return handler(value)
        key = cls.catalogue.key
        if key not in value:
            if "catalogue" in vars(cls):
                context = {"key": key, "known": _known(cls)}
                raise PydanticCustomError("part", "the table needs a `{key}`{known}", context)
            return handler(value)
        found = _looked_up(cls, value[key], value.get(_VERSION, 1))
        rest = {name: item for name, item in value.items() if name not in (key, _VERSION)}
        return handler(rest) if found is cls else found.__pydantic_validator__.validate_python(rest)


def _dumped(value: Any) -> Any:
    if not isinstance(value, Part):
        return value
    return value.identity() | {name: getattr(value, name) for name in type(value).model_fields}


def _looked_up(cls: type[Part], id: Any, version: Any) -> type[Part]:
    catalogue = cls.catalogue
    assert catalogue is not None
    if not isinstance(id, str) or not isinstance(version, int) or isinstance(version, bool):
        context = {"key": catalogue.key, "given": f"{id!r}, {version!r}"}
        raise PydanticCustomError("part", "`{key}` should be text and `version` a whole number, got {given}", context)
    try:
        found = catalogue.find(id, version)
    except NitroError as error:
        told = "; ".join(text for text in (error.what, error.why) if text)
        raise PydanticCustomError("part", "{told}", {"told": told, "nearest": list(error.nearest)}) from None
    if not (isinstance(found, type) and issubclass(found, cls)):
        given = f"{id!r}, which is {getattr(found, '__name__', type(found).__name__)}"
        raise PydanticCustomError("part", "should be a {wanted}, got {given}", {"wanted": cls.__name__, "given": given})
    return found


def _known(cls: type[Part]) -> str:
    assert cls.catalogue is not None
    names = list(dict.fromkeys(entry.id for entry in cls.catalogue.entries() if entry.error is None))
    return f"; there are: {', '.join(names)}" if names else ""
