"""Strict scalars in an otherwise natural reading of TOML values.

pydantic's `strict=True` would also refuse a list for a tuple or a string for an enum, which is how TOML has to
write them. So validation stays lax and only the scalar leaves of a schema are made strict, at any depth. Paths are
read there too: a leading `~` is the home directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nitro_cli.text import is_utf8, visible

__all__ = ["strict_scalars"]

STRICT = "__nitro_strict__"
"""The attribute of a class whose own schema has strict scalars."""

_OPAQUE = frozenset({"metadata", "default", "cls"})
_SCALARS = frozenset({"bool", "int", "float", "str", "date", "time", "datetime"})


def strict_scalars(schema: CoreSchema, handler: GetCoreSchemaHandler, owner: type) -> CoreSchema:
    """A copy of `schema` whose scalar leaves are strict; an int is still accepted for a float.

    Args:
        schema: what pydantic generated for `owner`.
        handler: resolves references to the schemas of nested classes.
        owner: the class the schema belongs to.
    """
    walked = _Walk(handler, owner).visit(schema)
    # `Experiment.__init__` turns a ValidationError into a ConfigError; validation itself must not go through it,
    # or the problems of a nested value could not be collected with the others.
    for node in _outer_nodes(walked):
        if node.get("type") == "model":
            node["custom_init"] = False
    return walked


def _outer_nodes(schema: Any) -> list[dict[str, Any]]:
    nodes = []
    while isinstance(schema, dict):
        nodes.append(schema)
        if schema.get("type") == "model":
            break
        schema = schema.get("schema")
    return nodes


class _Walk:
    def __init__(self, handler: GetCoreSchemaHandler, owner: type) -> None:
        self._handler = handler
        self._owner = owner
        self._open: set[str] = set()

    def visit(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.visit(item) for item in node]
        if isinstance(node, tuple):
            return tuple(self.visit(item) for item in node)
        if not isinstance(node, dict):
            return node
        kind = node.get("type")
        if not isinstance(kind, str):
            # Not a schema but a mapping of them, whose keys are the user's names.
            return {key: self.visit(value) for key, value in node.items()}
        if kind == "definition-ref":
            return self._reference(node)
        if kind == "is-instance":
            return _array_from_list(node)
        if kind == "lax-or-strict" and _reads_path(node):
            return core_schema.no_info_after_validator_function(_usable_path, node)
        if kind == "enum":
            return core_schema.no_info_before_validator_function(_enum_reader(node["cls"]), node)
        if kind == "dict":
            # TOML keys are always strings, so a key of another type is read from its text.
            return {key: self.visit(value) if key == "values_schema" else value for key, value in node.items()}
        walked = {key: value if key in _OPAQUE else self.visit(value) for key, value in node.items()}
        if kind in _SCALARS:
            walked["strict"] = True
        if kind in ("model", "dataclass") and not (node["cls"] is self._owner or hasattr(node["cls"], STRICT)):
            return _strict_class(walked)
        return walked

    def _reference(self, node: dict[str, Any]) -> Any:
        ref = node["schema_ref"]
        # A class that contains itself stays a reference: its inner levels are validated as it declares them.
        if ref in self._open:
            return node
        resolved: Any = self._handler.resolve_ref_schema(node)
        if resolved.get("type") == "definition-ref":
            return node
        self._open.add(ref)
        try:
            found = self.visit({key: value for key, value in resolved.items() if key != "ref"})
            cls = resolved.get("cls")
            # What pydantic refers to, where a class stands a second time, is the class without its own way of reading.
            read = getattr(cls, "__nitro_read__", None)
            return found if read is None or cls is self._owner else read(found)
        finally:
            self._open.discard(ref)


def _strict_class(schema: dict[str, Any]) -> Any:
    # pydantic validates a nested class with the validator the class was built with, which is lax unless the class
    # says otherwise; the strict fields are therefore checked first, on their own.
    cls: type = schema["cls"]
    if "schema" not in schema:
        return schema
    checked = schema["schema"]

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, cls):
            return value
        handler(value)
        return _build(cls, value)

    return core_schema.no_info_wrap_validator_function(
        validate, checked, serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
    )


def _build(cls: Any, value: Mapping[str, Any]) -> Any:
    validator = getattr(cls, "__pydantic_validator__", None)
    return cls(**value) if validator is None else validator.validate_python(value)


def _dump(value: Any, info: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode=info.mode)


def _reads_path(schema: Any) -> bool:
    """Whether a schema is pydantic's own for a class of `pathlib`."""
    if isinstance(schema, list):
        return any(map(_reads_path, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "is-instance":
        return isinstance(schema["cls"], type) and issubclass(schema["cls"], PurePath)
    return any(_reads_path(schema.get(key)) for key in ("lax_schema", "python_schema", "choices"))


def _usable_path(value: PurePath) -> PurePath:
    if not is_utf8(value):
        raise PydanticCustomError(
            "path", "{given} is not UTF-8, in which a run's files name it", {"given": visible(str(value), keep="")}
        )
    return type(value)(os.path.expanduser(value))


def _enum_reader(cls: type[Enum]) -> Callable[[Any], Any]:
    kinds = {type(member.value) for member in cls}

    def read(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        natural = tuple(value) if isinstance(value, list) and tuple in kinds else value
        if type(natural) in kinds:
            try:
                return cls(natural)
            except ValueError:
                pass  # not a value of the enum; it may be a name
        if isinstance(value, str) and value in cls.__members__:
            return cls[value]
        known = [m.value if isinstance(m.value, str) else m.name for m in cls]
        context = {"expected": ", ".join(repr(k) for k in known), "given": f"{value!r} ({type(value).__name__})"}
        raise PydanticCustomError("enum", "should be one of {expected}, got {given}", context)

    return read


def _array_from_list(node: dict[str, Any]) -> Any:
    cls = node["cls"]
    # JAX's array type is called jaxlib._jax.Array, dots included.
    name, package = getattr(cls, "__name__", "").split(".")[-1], getattr(cls, "__module__", "").split(".")[0]
    if name == "ndarray" and package == "numpy":
        return core_schema.no_info_before_validator_function(_to_array, node)
    if name == "Array" and package in ("jax", "jaxlib"):
        import numpy as np

        either = core_schema.union_schema([node, core_schema.is_instance_schema(np.ndarray)])
        return core_schema.no_info_before_validator_function(_to_array, either)
    return node


def _to_array(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError as error:
        raise PydanticCustomError("array", "the list is not a regular array: {why}", {"why": str(error)}) from None
    if array.dtype.kind not in "biufc":
        raise PydanticCustomError("array", "the list does not hold numbers only")
    return array
