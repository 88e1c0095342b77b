"""The pydantic configuration that experiments and their value objects share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from .problems import config_error, problems_of
from .strictness import strict_scalars

__all__ = ["StrictModel", "unboxed"]


class StrictModel(BaseModel):
    """A frozen pydantic model with strict scalars, whose constructor raises nitro's own errors.

    Raises:
        ConfigError: on construction, listing every value that cannot be used, with the nearest valid names.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        defer_build=True,
    )

    input_names: ClassVar[dict[str, str]] = {}
    """Second names a value may be given under: field name to accepted name."""

    def __init__(self, /, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except ValidationError as error:
            raise config_error(type(self), problems_of(error, type(self), values)) from None

    __nitro_strict__: ClassVar[bool] = True

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return strict_scalars(handler(source), handler, cls)


def unboxed(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields of a class, a 0-d array or numpy scalar, alone or in a list, as the number it holds.

    `derive` returns them as a matter of course.
    """
    given = dict(values)
    for name, value in values.items():
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            info = cls.model_fields.get(name)
            if info is not None and info.annotation in (int, float, bool, int | None, float | None, bool | None):
                given[name] = value.item()
        elif type(value) in (list, tuple):
            given[name] = type(value)(_unboxed(item) for item in value)
    return given


def _unboxed(item: Any) -> Any:
    return item.item() if hasattr(item, "dtype") and getattr(item, "shape", None) == () else item
