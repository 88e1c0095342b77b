"""What happens when an experiment class is declared: kinds recorded, names and defaults checked."""

from __future__ import annotations

import sys
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ForwardRef, cast, dataclass_transform, get_args, get_origin

from pydantic import BaseModel, Field, PydanticUserError, ValidationError
from pydantic.fields import FieldInfo

from nitro_cli.errors import ConfigError, nearest

from .hooks import HOOKS, Hooks
from .kinds import FieldKind, KindMarker, kind_of_annotation
from .part import Part
from .problems import config_error, problems_of

__all__ = ["ExperimentMeta"]

_METHODS = (FunctionType, property, classmethod, staticmethod)


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class ExperimentMeta(ModelMetaclass):
    """Metaclass of `Experiment`.

    A default assigned without an annotation takes the inherited annotation and kind; a field named like a hook or a
    method of the base, an unknown name, and a default that its type refuses are errors where the class is written.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> type:
        frame = sys._getframe(1)
        where = f"{name} in {frame.f_code.co_filename}:{frame.f_lineno}"
        parents = [b for b in bases if isinstance(b, ExperimentMeta)]
        hints = _evaluated(namespace, frame, where)
        kinds = {n: _located(where, kind_of_annotation, a, n) for n, a in hints.items() if _is_field(n, a)}
        if parents:
            for field in kinds:
                _check_name(field, bases, where)
            _adopt_defaults(namespace, hints, kinds, bases, where)
        namespace["__annotations__"] = hints
        try:
            cls: Any = super().__new__(mcs, name, bases, namespace, **kwargs)
        except PydanticUserError as error:
            raise ConfigError(f"the class cannot be declared: {error.message}", where=where) from error
        inherited: dict[str, FieldKind] = {}
        for parent in reversed(parents):
            inherited |= cast(Any, parent).__nitro_kinds__
        inherited |= kinds
        cls.__nitro_kinds__ = {
            field: inherited.get(field) or _kind_of_mixin(info) for field, info in cls.model_fields.items()
        }
        cls.__nitro_parts__ = tuple(n for n, info in cls.model_fields.items() if _holds_part(info.annotation))
        for field in cls.__nitro_parts__:
            _check_unmarked(field, cls.model_fields[field], where)
            cls.__nitro_kinds__[field] = _kind_of_parts(cls.model_fields[field].annotation)
        cls.__nitro_own__ = tuple(kinds)
        cls.__nitro_source__ = (frame.f_code.co_filename, frame.f_lineno)
        cls.__nitro_sentinels__ = None
        if parents:
            _check_defaults(cls, where)
        return cls


def _kind_of_mixin(info: FieldInfo) -> FieldKind:
    # A field that a base other than an experiment declares.
    return next((m.kind for m in info.metadata if isinstance(m, KindMarker)), FieldKind.HOST)


def _holds_part(annotation: Any) -> bool:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return issubclass(annotation, Part)
    return any(map(_holds_part, get_args(annotation)))


def _kind_of_parts(annotation: Any) -> FieldKind:
    """The kind of a field that holds parts: Host where no program depends on them."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return FieldKind.GRAPHCONST if issubclass(annotation, Part) and not annotation.on_host else FieldKind.HOST
    found = [_kind_of_parts(argument) for argument in get_args(annotation)]
    return FieldKind.GRAPHCONST if FieldKind.GRAPHCONST in found else FieldKind.HOST


def _check_unmarked(field: str, info: FieldInfo, where: str) -> None:
    if any(isinstance(m, KindMarker) for m in info.metadata):
        raise ConfigError(
            f"field {field!r} holds a part and is marked",
            where=where,
            why="the fields inside a part have kinds of their own",
            fix=f"write the type of {field!r} without a marker",
        )


def _type_of_parts(value: Any) -> Any:
    """The annotation of a field whose default is a part, or a tuple of parts: any part of the family goes there."""
    if isinstance(value, Part):
        return next((cls for cls in type(value).__mro__ if "catalogue" in vars(cls) and cls is not Part), type(value))
    if isinstance(value, tuple) and value and all(isinstance(item, Part) for item in value):
        families = {_type_of_parts(item) for item in value}
        return tuple[families.pop(), ...] if len(families) == 1 else None  # type: ignore[misc]
    return None


def _is_field(name: str, annotation: Any) -> bool:
    return not name.startswith("_") and annotation is not ClassVar and get_origin(annotation) is not ClassVar


def _located(where: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, why=error.why, fix=error.fix, nearest=error.nearest) from None


def _evaluated(namespace: dict[str, Any], frame: FrameType, where: str) -> dict[str, Any]:
    raw = namespace.get("__annotations__")
    if raw is None and sys.version_info >= (3, 14):
        import annotationlib  # type: ignore[import-not-found,unused-ignore]

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            raw = annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)
    evaluated: dict[str, Any] = {}
    visible = {**frame.f_locals, **namespace}
    for name, annotation in (raw or {}).items():
        text = annotation = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
        # A quoted type under postponed annotations is a string of a string.
        while isinstance(annotation, str):
            try:
                annotation = eval(annotation, frame.f_globals, visible)
            except Exception as error:
                if name.startswith("_"):
                    break
                raise ConfigError(
                    f"the type of field {name!r} cannot be evaluated: {error}",
                    where=where,
                    why=f"the annotation is {text!r}, and fields are checked where the class is written",
                    fix="import what it names at the top of the module, outside `if TYPE_CHECKING:`",
                ) from None
        if not isinstance(annotation, str):
            evaluated[name] = type(None) if annotation is None else annotation
    return evaluated


def _check_name(field: str, bases: tuple[type, ...], where: str) -> None:
    taken = "a hook" if field in HOOKS else None
    for base in bases:
        if field not in getattr(base, "model_fields", {}) and hasattr(base, field):
            taken = taken or f"a method or attribute of {base.__name__}"
    if taken:
        raise ConfigError(
            f"field {field!r} is named like {taken}",
            where=where,
            why="the field would hide it from the framework",
            fix=f"rename the field, or define `def {field}(self, ...)` if the hook is meant"
            if field in HOOKS
            else "rename the field",
        )


def _inherited_field(name: str, bases: tuple[type, ...]) -> FieldInfo | None:
    for base in bases:
        found = getattr(base, "model_fields", {}).get(name)
        if found is not None:
            return found
    return None


def _adopt_defaults(
    namespace: dict[str, Any], hints: dict[str, Any], kinds: dict[str, FieldKind], bases: tuple[type, ...], where: str
) -> None:
    for name, value in list(namespace.items()):
        if name.startswith("_") or name in hints or name == "model_config":
            continue
        info = _inherited_field(name, bases)
        if info is None and name in HOOKS and value is None:
            # As if the hook were not written: what an experiment above this one wrote is taken back.
            default = getattr(Hooks, name, None)
            if default is None:
                hints[name] = ClassVar[Any]
            else:
                namespace[name] = default
            continue
        if info is None and name not in HOOKS and (found := _type_of_parts(value)) is not None:
            _check_name(name, bases, where)
            hints[name], kinds[name] = found, _kind_of_parts(found)
            continue
        if info is None:
            _admit_attribute(name, value, hints, bases, where)
            continue
        if isinstance(value, _METHODS):
            raise ConfigError(
                f"{name!r} is a field, and the class defines it as a method",
                where=where,
                fix=f"assign its value instead: `{name} = ...`",
            )
        hints[name] = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        kinds[name] = next(b.__nitro_kinds__[name] for b in bases if name in getattr(b, "__nitro_kinds__", {}))  # type: ignore[attr-defined]


def _admit_attribute(name: str, value: Any, hints: dict[str, Any], bases: tuple[type, ...], where: str) -> None:
    if isinstance(value, (*_METHODS, type)):
        return
    # A decorated method (jax.jit, functools.cache, partial), a descriptor, or what pydantic reads itself.
    pydantic_own = type(value).__module__.startswith("pydantic")
    if pydantic_own:
        return
    if callable(value) or hasattr(type(value), "__get__") or hasattr(type(value), "__set_name__"):
        hints[name] = ClassVar[Any]
        return
    if name in HOOKS:
        raise ConfigError(
            f"{name!r} is a hook, and the class assigns it {value!r}",
            where=where,
            why="the framework calls it",
            fix=f"define `def {name}(self, ...)`; `{name} = None` is the default",
        )
    known = [f for b in bases for f in getattr(b, "model_fields", {})]
    raise ConfigError(
        f"{name!r} is assigned without an annotation and is no inherited field",
        where=where,
        fix=f"write its type, such as `{name}: {type(value).__name__} = {value!r}`, or ClassVar if it is no field",
        nearest=nearest(name, known),
    )


# An unknown name, so that validation ends with the fields: whole-object validators are not meant for bare defaults.
_STOP = {"(defaults only)": None}


def _check_defaults(cls: Any, where: str) -> None:
    try:
        cls.__pydantic_validator__.validate_python(_STOP, self_instance=object.__new__(cls))
    except ValidationError as error:
        found = problems_of(error, cls, _STOP)
        problems = [p for p in found if p.kind != "missing" and p.path and p.path[0] not in _STOP]
        if problems:
            listed = config_error(cls, problems)
            raise ConfigError(f"a default cannot be used. {listed.what}", where=where, nearest=listed.nearest) from None
