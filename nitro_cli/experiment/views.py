"""What a hook receives as `self`: Device fields replaced, and for traced hooks the Host fields stripped."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from nitro_cli.errors import ConfigError, nearest

from .experiment import KNOBS, Experiment, device_names
from .kinds import FieldKind
from .part_leaves import with_leaves
from .sentinel import StrippedHost

__all__ = ["compile_view", "host_view", "with_unset"]

E = TypeVar("E", bound=Experiment)


def compile_view(e: E, device_values: Mapping[str, Any] | None = None) -> E:
    """The experiment as traced code sees it.

    Every Host field is a `StrippedHost`, every GraphConst field its Python value; hooks are the user's methods.
    Building one costs a dictionary copy: nothing is validated and no array is touched.

    Args:
        e: the experiment, or a view of it.
        device_values: what the Device fields hold inside the program (tracers); those not named keep their value.

    Raises:
        ConfigError: `e` is no experiment, or `device_values` names something that is not a Device field.
    """
    cls = type(e)
    if not hasattr(cls, "__nitro_kinds__"):
        raise ConfigError(f"{reprlib.repr(e)} is no experiment", fix="give an instance of your class: MyExperiment()")
    return _view(e, {**_sentinels(cls), **_checked(e, device_values)}, strip=True)


def host_view(e: E, device_values: Mapping[str, Any]) -> E:
    """The experiment as a host hook sees it after setup: Device fields hold device arrays, Host fields their value.

    Raises:
        ConfigError: `device_values` names something that is not a Device field.
    """
    return _view(e, _checked(e, device_values))


def with_unset(e: E, values: Mapping[str, Any]) -> E:
    """As `e.replace(**values)`, for values that nobody set: `model_fields_set` stays as it is.

    Raises:
        ConfigError: an unknown field, or a value that cannot be used.
    """
    replaced = e.replace(**values)
    object.__setattr__(replaced, "__pydantic_fields_set__", set(e.model_fields_set))
    return replaced


def _view(e: E, replaced: Mapping[str, Any], *, strip: bool = False) -> E:
    cls = type(e)
    values = e.__dict__

    def inside(path: str, kind: FieldKind, held: Any) -> Any:
        if kind is FieldKind.HOST and strip:
            return StrippedHost(path, cls.__name__)
        return replaced.get(path, held)

    fields = {name: values[name] for name in cls.model_fields}
    fields |= {name: value for name, value in replaced.items() if name in fields}
    kinds = cls.__nitro_kinds__
    parts = [name for name in cls.__nitro_parts__ if kinds[name] is FieldKind.GRAPHCONST]
    fields |= {name: with_leaves(values[name], name, inside) for name in parts}
    view = cls.__new__(cls)
    # Fields only: what a cached_property computed from other values must not come along.
    object.__setattr__(view, "__dict__", fields)
    object.__setattr__(view, "__pydantic_fields_set__", e.__pydantic_fields_set__)
    object.__setattr__(view, "__pydantic_extra__", None)
    object.__setattr__(view, "__pydantic_private__", e.__pydantic_private__)
    return view


def _sentinels(cls: type[Experiment]) -> dict[str, StrippedHost]:
    found = cls.__nitro_sentinels__
    if found is None:
        found = {
            name: StrippedHost(name, cls.__name__, name in KNOBS)
            for name, kind in cls.__nitro_kinds__.items()
            if kind is FieldKind.HOST
        }
        cls.__nitro_sentinels__ = found
    return found


def _checked(e: Experiment, device_values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    cls, kinds = type(e), type(e).__nitro_kinds__
    for name in device_values or ():
        if kinds.get(name) is not FieldKind.DEVICE and name not in (devices := device_names(e)):
            reason = f"it is a {kinds[name].value} field" if name in kinds else "there is no such field"
            raise ConfigError(
                f"{name!r} is no Device field of {cls.__name__}: {reason}", nearest=nearest(name, devices)
            )
    return device_values or {}
