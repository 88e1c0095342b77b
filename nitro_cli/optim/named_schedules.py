"""Named schedules as factories of the horizon, from Python or from a preset's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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
    StrictModel,
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


class NamedCurve:
    """A named schedule over a known horizon: a function of the upcoming optimizer step, counted from 1."""

    def __init__(self, kind: str, parameters: Mapping[str, Any], total: int) -> None:
        self.kind = kind
        self._parameters = dict(parameters)
        self._total = total

    def values(self, steps: np.ndarray) -> Values:
        """float64 values at `steps` (integers, the first optimizer step is 1)."""
        return CURVES[self.kind](np.asarray(steps, np.float64) - 1.0, self._total, **self._parameters)

    def __call__(self, step: int) -> float:
        """The value at one step."""
        return float(self.values(np.asarray([step]))[0])


class NamedSchedule:
    """A factory of the horizon made from a schedule model: `factory(total)` is a `NamedCurve`."""

    def __init__(self, config: StrictModel) -> None:
        self.kind = str(config.kind)  # type: ignore[attr-defined]
        self.parameters = {n: v for n, v in config.model_dump(exclude={"kind"}).items() if v is not None}
        fields = type(config).model_fields
        self._shown = {n: v for n, v in self.parameters.items() if v != fields[n].default}

    def __call__(self, total: int) -> NamedCurve:
        """The curve over `total` optimizer steps.

        Raises:
            ScheduleError: the parameters do not fit the horizon.
        """
        curve = NamedCurve(self.kind, self.parameters, total)
        curve.values(np.asarray([1]))
        return curve

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self._shown.items())})"


def constant(value: float) -> NamedSchedule:
    """The same value at every step."""
    return NamedSchedule(Constant(value=value))


def linear(
    init_value: float, end_value: float, transition_steps: int | None = None, transition_begin: int = 0
) -> NamedSchedule:
    """`optax.linear_schedule`; `transition_steps` defaults to the rest of the horizon."""
    return NamedSchedule(
        Linear(
            init_value=init_value,
            end_value=end_value,
            transition_steps=transition_steps,
            transition_begin=transition_begin,
        )
    )


def polynomial(
    init_value: float,
    end_value: float,
    power: float,
    transition_steps: int | None = None,
    transition_begin: int = 0,
) -> NamedSchedule:
    """`optax.polynomial_schedule`; `transition_steps` defaults to the rest of the horizon."""
    return NamedSchedule(
        Polynomial(
            init_value=init_value,
            end_value=end_value,
            power=power,
            transition_steps=transition_steps,
            transition_begin=transition_begin,
        )
    )


def cosine(
    init_value: float, decay_steps: int | None = None, alpha: float = 0.0, exponent: float = 1.0
) -> NamedSchedule:
    """`optax.cosine_decay_schedule`; `decay_steps` defaults to the horizon."""
    return NamedSchedule(Cosine(init_value=init_value, decay_steps=decay_steps, alpha=alpha, exponent=exponent))


def warmup_cosine(
    peak_value: float,
    warmup_steps: int,
    init_value: float = 0.0,
    decay_steps: int | None = None,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> NamedSchedule:
    """`optax.warmup_cosine_decay_schedule`; `decay_steps`, which counts the warmup, defaults to the horizon."""
    return NamedSchedule(
        WarmupCosine(
            peak_value=peak_value,
            warmup_steps=warmup_steps,
            init_value=init_value,
            decay_steps=decay_steps,
            end_value=end_value,
            exponent=exponent,
        )
    )


def exponential(
    init_value: float,
    decay_rate: float,
    transition_steps: int | None = None,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> NamedSchedule:
    """`optax.exponential_decay`; `transition_steps` defaults to the horizon."""
    return NamedSchedule(
        Exponential(
            init_value=init_value,
            decay_rate=decay_rate,
            transition_steps=transition_steps,
            transition_begin=transition_begin,
            staircase=staircase,
            end_value=end_value,
        )
    )


def piecewise(
    init_value: float,
    boundaries_and_scales: Mapping[int, float] | None = None,
    interpolate_type: Literal["linear", "cosine"] | None = None,
) -> NamedSchedule:
    """`optax.piecewise_constant_schedule`, or with `interpolate_type` `optax.piecewise_interpolate_schedule`.

    A boundary is a count from 0, as in optax; its scale is multiplied in from there on.
    """
    return NamedSchedule(
        Piecewise(
            init_value=init_value,
            boundaries_and_scales=dict(boundaries_and_scales or {}),
            interpolate_type=interpolate_type,
        )
    )


def inverse_sqrt(peak_value: float, warmup_steps: int, init_value: float = 0.0) -> NamedSchedule:
    """Linear warmup, then `peak_value * sqrt(warmup_steps / count)`, the count being 0 at the first step.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, equation 3.
    """
    return NamedSchedule(InverseSqrt(peak_value=peak_value, warmup_steps=warmup_steps, init_value=init_value))


def one_cycle(
    max_lr: float,
    total_steps: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> NamedSchedule:
    """PyTorch's `OneCycleLR`, argument for argument; `total_steps` defaults to the horizon.

    Reference: Smith and Topin 2018, arXiv:1708.07120.
    """
    return NamedSchedule(
        OneCycle(
            max_lr=max_lr,
            total_steps=total_steps,
            pct_start=pct_start,
            anneal_strategy=anneal_strategy,
            div_factor=div_factor,
            final_div_factor=final_div_factor,
            three_phase=three_phase,
        )
    )


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
    if isinstance(config, StrictModel) and str(getattr(config, "kind", "")) in CURVES:
        return NamedSchedule(config)
    raise ScheduleError(
        f"schedule {key!r} is {type(config).__name__}, which describes no schedule",
        fix='write a table such as { kind = "cosine", init_value = 1e-3 }',
    )
