"""Named schedules as factories of the horizon, from Python or from a preset's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import numpy as np

from nitro_cli.errors import ScheduleError
from nitro_cli.experiment import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    OneCycle,
    Piecewise,
    PlateauConfig,
    Polynomial,
    Schedule,
    WarmupCosine,
    parse_schedules,
)
from nitro_cli.optim.curves import CURVES, Values
from nitro_cli.optim.plateau import Plateau

__all__ = [
    "NamedCurve",
    "NamedSchedule",
    "constant",
    "cosine",
    "exponential",
    "inverse_sqrt",
    "linear",
    "one_cycle",
    "piecewise",
    "polynomial",
    "schedule_from_config",
    "warmup_cosine",
]


P = ParamSpec("P")


class NamedCurve:
    """A named schedule over a known horizon: a function of the upcoming optimizer step, counted from 1."""

    def __init__(self, schedule: Schedule, total: int) -> None:
        self.schedule = schedule
        self._total = total

    @property
    def kind(self) -> str:
        """What the schedule is called."""
        return _kind(type(self.schedule))

    def values(self, steps: np.ndarray) -> Values:
        """float64 values at `steps` (integers, the first optimizer step is 1)."""
        return CURVES[type(self.schedule)](self.schedule, np.asarray(steps, np.float64) - 1.0, self._total)

    def __call__(self, step: int) -> float:
        """The value at one step."""
        return float(self.values(np.asarray([step]))[0])


class NamedSchedule:
    """A factory of the horizon made from a schedule's parameters: `factory(total)` is a `NamedCurve`."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __call__(self, total: int) -> NamedCurve:
        """The curve over `total` optimizer steps.

        Raises:
            ScheduleError: the parameters do not fit the horizon.
        """
        curve = NamedCurve(self.schedule, total)
        curve.values(np.asarray([1]))
        return curve

    def __repr__(self) -> str:
        fields, values = type(self.schedule).model_fields, self.schedule.model_dump(exclude={"kind"})
        shown = (f"{name}={value!r}" for name, value in values.items() if value != fields[name].default)
        return f"{_kind(type(self.schedule))}({', '.join(shown)})"


def _kind(model: type[Schedule]) -> str:
    return str(model.model_fields["kind"].default)


def _factory(model: Callable[P, Schedule]) -> Callable[P, NamedSchedule]:
    """A function that makes schedules of one kind, with the parameters and the documentation of its model."""

    def make(*given: P.args, **values: P.kwargs) -> NamedSchedule:
        return NamedSchedule(model(*given, **values))

    described: Any = make
    cls: Any = model
    described.__name__ = described.__qualname__ = _kind(cls)
    described.__doc__, described.__signature__ = cls.__doc__, cls.signature()
    return make


constant = _factory(Constant)
linear = _factory(Linear)
polynomial = _factory(Polynomial)
cosine = _factory(Cosine)
warmup_cosine = _factory(WarmupCosine)
exponential = _factory(Exponential)
piecewise = _factory(Piecewise)
inverse_sqrt = _factory(InverseSqrt)
one_cycle = _factory(OneCycle)


def schedule_from_config(config: Any, key: str = "schedule") -> NamedSchedule | Plateau | float:
    """The schedule a preset's table or a schedule model describes.

    Args:
        config: a number, a mapping with `kind`, or a schedule model of `nitro_cli.experiment`.
        key: the schedule's key, for errors.

    Returns:
        A number (a constant), a factory of the horizon, or a `Plateau` around either.

    Raises:
        ScheduleError: `kind` is missing or unknown, or a parameter does not fit.
    """
    if isinstance(config, Mapping):
        config = parse_schedules({key: dict(config)})[key]
    if isinstance(config, int | float) and not isinstance(config, bool):
        return float(config)
    if isinstance(config, PlateauConfig):
        options = config.model_dump(exclude={"kind", "inner"})
        return Plateau(schedule_from_config(config.inner, key), **options)
    if isinstance(config, Schedule):
        return NamedSchedule(config)
    raise ScheduleError(
        f"schedule {key!r} is {type(config).__name__}, which describes no schedule",
        fix='write a table such as { kind = "cosine", init_value = 1e-3 }',
    )
