"""The Device fields of a run: their values by step, and new ones checked before they are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import ConfigError, ScheduleError, nearest
from nitro_cli.experiment import (
    Experiment,
    config_metadata,
    device_array,
    device_names,
    field_value,
    host_view,
    unset_device_names,
)
from nitro_cli.optim import BLOCK
from nitro_cli.run.devices import Placement
from nitro_cli.run.rules import Rules

__all__ = ["DeviceFields", "no_attribute"]


class DeviceFields:
    """The Device fields of one run, as arrays on its devices.

    Args:
        experiment: whose fields they are.
        rules: whose hyperparameters say which of them schedules drive, and their values.
        placement: the devices.
        arrays: the values by name, as set.

    Attributes:
        version: grows whenever a value is set: what was computed from them is stale then.
    """

    def __init__(
        self, experiment: Experiment, rules: Rules, placement: Placement, arrays: Mapping[str, jax.Array]
    ) -> None:
        self._experiment = experiment
        self._rules = rules
        self._placement = placement
        self.arrays = dict(arrays)
        self.version = 0

    def at(self, step: int) -> dict[str, jax.Array]:
        """Every field's array, scheduled ones at optimizer step `step`."""
        if not self._rules.hyper.scheduled_device_fields:
            return self.arrays
        values = self._rules.hyper.device_values(max(step, 1), 1)
        now = {name: np.asarray(value[0], self.arrays[name].dtype) for name, value in values.items()}
        return {**self.arrays, **self._placement.put(now)}

    def host_view(self, step: int) -> Experiment:
        """The experiment for host hooks at a step: Device fields as host arrays, everything else as it is."""
        return host_view(self._experiment, {name: np.asarray(value) for name, value in self.at(step).items()})

    def inputs(self, step: int) -> dict[str, Any]:
        """The fields as the training program takes them: a value per step for what can be scheduled.

        Args:
            step: optimizer steps taken before the step to come; the values are those of its block.

        Returns:
            Name to array: of the fields that a schedule can drive [BLOCK] in their own dtype, the others as they are.
        """
        scheduled = self._rules.hyper.device_values(step // BLOCK * BLOCK + 1)
        values = {name: scheduled.get(name, np.asarray(self.arrays[name])) for name in self._rules.hyper.device_fields}
        stepped = {name: np.full(BLOCK, held, self.arrays[name].dtype) for name, held in values.items()}
        return {**self.arrays, **self._placement.put(stepped)}

    def check_scheduled(self, total_steps: int) -> None:
        """Refuse schedules that give a field a value which it would not take otherwise, as far as it is looked ahead:
        at the first block of steps, the last, and some between.

        Raises:
            ScheduleError: names the schedule's value and what the field takes.
        """
        names = self._rules.hyper.scheduled_device_fields
        if not names:
            return
        for block in sorted({int(at) for at in np.linspace(0, max(total_steps - 1, 0) // BLOCK, 4)}):
            start = block * BLOCK + 1
            count = min(BLOCK, max(total_steps, 1) - start + 1)
            for name, values in self._rules.hyper.device_values(start, count).items():
                for at in (int(values.argmin()), int(values.argmax())):
                    self._check_value(name, values[at], start + at)

    def _check_value(self, name: str, value: np.float64, step: int) -> None:
        whole = self.arrays[name].dtype.kind in "iu"
        try:
            self._experiment.replace(**{name: int(value) if whole else float(value)})
        except ConfigError as error:
            raise ScheduleError(
                f"schedule {name!r} is {value:g} at step {step}",
                where=f"schedules.{name}",
                why=error.what,
                fix="schedule values that the field takes",
            ) from error

    def set(self, values: Mapping[str, Any]) -> None:
        """Give fields new values, taken as the construction of the experiment takes them.

        Raises:
            ConfigError: a field is not a Device field, is scheduled, refuses the value, or has another dtype or shape.
        """
        for name in values:
            self.check_name(name)
            if name in self._rules.hyper.scheduled_device_fields:
                raise ConfigError(
                    f"{name} is scheduled",
                    why="the schedule would overwrite the value at the next step",
                    fix=f"build a new handle whose schedules leave {name} out",
                )
        taken = self._experiment.replace(**values)
        ready = {name: _checked(name, field_value(taken, name), self.arrays[name]) for name in values}
        self.arrays = {**self.arrays, **self._placement.put(ready)}
        self.version += 1

    def check_name(self, name: str) -> None:
        """Refuse a name that is none of a Device field.

        Raises:
            ConfigError: says what it is instead.
        """
        cls = type(self._experiment)
        names, fields = device_names(self._experiment), config_metadata(cls)
        if not isinstance(name, str):
            raise ConfigError(f"{name!r:.60} is no name of a field", nearest=names, fix="give text")
        if name in names:
            return
        if name in unset_device_names(self._experiment):
            raise ConfigError(
                f"{name} is not set",
                why="a Device field that is None is no input of the compiled programs",
                fix=f"build a new handle with {name} set to a number",
            )
        if name in fields:
            raise ConfigError(
                f"{name} is a {fields[name].kind} field",
                why="only Device fields are inputs of the compiled programs",
                fix=f"build a new handle with {name}=..., or declare it Device",
            )
        raise ConfigError(f"{cls.__name__} has no field {name!r}", nearest=nearest(name, names))


def no_attribute(handle: type[Any], e: Experiment, name: str) -> ConfigError:
    """The error for an assignment to what is no attribute of a handle: it would be taken and do nothing."""
    cls = type(e)
    if name in device_names(e):
        why, fix = "a Device field of a live handle is set by a call", f"nitro.set_device({name}=...)"
    elif name in config_metadata(cls):
        why, fix = "a handle's values are settled when it is built", f"a new handle: Nitro(e.replace({name}=...))"
    elif hasattr(handle, name):
        why, fix = "it is read, or called", None
    else:
        device = device_names(e)
        why = f"neither the handle nor {cls.__name__} has it"
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
