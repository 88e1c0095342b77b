"""Device fields of a live handle: looked up by name, and new values checked before they are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import config_metadata, device_array, device_names, field_value
from nitro_cli.run.parts import Parts

__all__ = ["checked_values", "device_field", "no_attribute"]


def checked_values(parts: Parts, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """New values of Device fields, taken as the construction of the experiment takes them, as the program wants them.

    Raises:
        ConfigError: a field is not a Device field, is scheduled, refuses the value, or has another dtype or shape.
    """
    for name in values:
        device_field(parts, name)
        if name in parts.hyper.scheduled_device_fields:
            raise ConfigError(
                f"{name} is scheduled",
                why="the schedule would overwrite the value at the next step",
                fix=f"build a new handle whose schedules leave {name} out",
            )
    taken = parts.experiment.replace(**values)
    return {name: _checked(name, field_value(taken, name), parts.device[name]) for name in values}


def no_attribute(handle: type[Any], parts: Parts, name: str) -> ConfigError:
    """The error for an assignment to what is no attribute of a handle: it would be taken and do nothing."""
    e, cls = parts.experiment, type(parts.experiment)
    if name in device_names(e):
        why, fix = "a Device field of a live handle is set by a call", f"nitro.set_device({name}=...)"
    elif name in config_metadata(cls):
        why, fix = "a handle's values are settled when it is built", f"a new handle: Nitro(e.replace({name}=...))"
    elif hasattr(handle, name):
        why, fix = "it is read, or called", None
    else:
        device = device_names(e)
        why = f"neither the handle nor {type(e).__name__} has it"
        fix = "Device fields are set by nitro.set_device(name=...)"
        known = [*vars(handle), *config_metadata(cls), *device]
        return ConfigError(f"{name} cannot be assigned to a handle", why=why, fix=fix, nearest=nearest(name, known))
    return ConfigError(f"{name} cannot be assigned to a handle", why=why, fix=fix)


def _checked(name: str, value: Any, current: jax.Array) -> np.ndarray:
    array = np.array(device_array(value))  # a copy: on the CPU the device would read the user's own array
    if array.shape != current.shape or array.dtype != current.dtype:
        raise ConfigError(
            f"{name} is {current.dtype}{list(current.shape)}, the new value {array.dtype}{list(array.shape)}",
            why="another dtype or shape is another program",
            fix="build a new handle with this value",
        )
    return array


def device_field(parts: Parts, name: str) -> jax.Array:
    """The array of a Device field, before schedules.

    Raises:
        ConfigError: the experiment has no Device field of that name.
    """
    cls = type(parts.experiment)
    names = device_names(parts.experiment)
    if not isinstance(name, str):
        raise ConfigError(f"{name!r:.60} is no name of a field", nearest=names, fix="give text")
    if name in names:
        return parts.device[name]
    fields = config_metadata(cls)
    if name in fields:
        raise ConfigError(
            f"{name} is a {fields[name].kind} field",
            why="only Device fields are inputs of the compiled programs",
            fix=f"build a new handle with {name}=..., or declare it Device",
        )
    raise ConfigError(f"{cls.__name__} has no field {name!r}", nearest=nearest(name, names))
