"""The named schedules that TOML and `--set` can write, as validated values; the optim room evaluates them.

Parameter names are optax's; those of `one_cycle` and `plateau` are PyTorch's. Where a number of steps is None it is
the run's horizon, its total of optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from nitro_cli.errors import ScheduleError

from .problems import Problem, problems_of
from .selectors import Mode
from .strict_model import StrictModel

__all__ = [
    "SCHEDULE_KINDS",
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSqrt",
    "Linear",
    "OneCycle",
    "Piecewise",
    "PlateauConfig",
    "Polynomial",
    "ScheduleConfig",
    "WarmupCosine",
    "parse_schedules",
    "schedule_problems",
]

Steps = Annotated[int, Field(ge=1)]
Begin = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Power = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Constant(StrictModel):
    """The same value at every step (`optax.constant_schedule`); in TOML a bare number says the same."""

    kind: Literal["constant"] = "constant"
    value: Finite


class Linear(StrictModel):
    """A line from one value to another (`optax.linear_schedule`)."""

    kind: Literal["linear"] = "linear"
    init_value: Finite
    end_value: Finite
    transition_steps: Steps | None = None
    transition_begin: Begin = 0


class Cosine(StrictModel):
    """Cosine decay (`optax.cosine_decay_schedule`)."""

    kind: Literal["cosine"] = "cosine"
    init_value: Finite
    decay_steps: Steps | None = None
    alpha: Finite = 0.0
    exponent: Power = 1.0


class WarmupCosine(StrictModel):
    """A linear warmup, then cosine decay (`optax.warmup_cosine_decay_schedule`)."""

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    init_value: Finite = 0.0
    peak_value: Finite
    warmup_steps: Begin
    decay_steps: Steps | None = None
    end_value: Finite = 0.0
    exponent: Power = 1.0


class OneCycle(StrictModel):
    """The one-cycle policy, argument for argument `torch.optim.lr_scheduler.OneCycleLR`; `peak` is `max_lr`."""

    input_names: ClassVar[dict[str, str]] = {"max_lr": "peak"}

    kind: Literal["one_cycle"] = "one_cycle"
    max_lr: Finite
    total_steps: Steps | None = None
    pct_start: float = Field(default=0.3, ge=0, le=1)
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: Power = 25.0
    final_div_factor: Power = 1e4
    three_phase: bool = False

    @model_validator(mode="before")
    @classmethod
    def _peak(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "peak" not in values:
            return values
        if "max_lr" in values:
            raise ValueError("peak and max_lr are two names of one value: give one")
        return {("max_lr" if name == "peak" else name): value for name, value in values.items()}


class Exponential(StrictModel):
    """Exponential decay (`optax.exponential_decay`)."""

    kind: Literal["exponential"] = "exponential"
    init_value: Finite
    transition_steps: Steps | None = None
    decay_rate: Power
    transition_begin: Begin = 0
    staircase: bool = False
    end_value: Finite | None = None


class Polynomial(StrictModel):
    """A polynomial from one value to another (`optax.polynomial_schedule`)."""

    kind: Literal["polynomial"] = "polynomial"
    init_value: Finite
    end_value: Finite
    power: Power
    transition_steps: Steps | None = None
    transition_begin: Begin = 0


class Piecewise(StrictModel):
    """Steps at boundaries, each scaling the value before it (`optax.piecewise_constant_schedule`).

    With `interpolate_type` the value moves between the boundaries (`optax.piecewise_interpolate_schedule`).
    """

    kind: Literal["piecewise"] = "piecewise"
    init_value: Finite
    boundaries_and_scales: dict[Steps, Finite] = Field(default_factory=dict)
    interpolate_type: Literal["linear", "cosine"] | None = None


class InverseSqrt(StrictModel):
    """A linear warmup, then decay with the inverse square root of the step (Vaswani et al. 2017, eq. 3).

    `peak_value * sqrt(warmup_steps / step)` after the warmup.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    peak_value: Finite
    warmup_steps: Steps
    init_value: Finite = 0.0


def _choice(value: Any) -> str | None:
    # Chosen before validation, so that the problems of one kind are not mixed with those of a number.
    if isinstance(value, Mapping):
        kind = value.get("kind")
        return kind if isinstance(kind, str) else None
    return str(getattr(value, "kind", "number"))


_Number = Annotated[Finite, Tag("number")]
_Plain = (
    _Number
    | Annotated[Constant, Tag("constant")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[WarmupCosine, Tag("warmup_cosine")]
    | Annotated[OneCycle, Tag("one_cycle")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[Polynomial, Tag("polynomial")]
    | Annotated[Piecewise, Tag("piecewise")]
    | Annotated[InverseSqrt, Tag("inverse_sqrt")]
)


class PlateauConfig(StrictModel):
    """Another schedule, or a number, scaled down when the validation metric stops improving.

    The rule and its parameters are those of `torch.optim.lr_scheduler.ReduceLROnPlateau`; `min_scale` bounds the
    scale, not the value.
    """

    kind: Literal["plateau"] = "plateau"
    inner: Annotated[_Plain, Discriminator(_choice)]
    metric: str | None = None
    mode: Mode | None = None
    factor: float = Field(default=0.1, gt=0, lt=1)
    patience: int = Field(default=10, ge=0)
    cooldown: int = Field(default=0, ge=0)
    threshold: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    threshold_mode: Literal["rel", "abs"] = "rel"
    min_scale: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.metric is None) != (self.mode is None):
            raise ValueError("metric and mode go together: give both, or neither to follow the run's monitor")
        return self


ScheduleConfig = (
    Constant
    | Linear
    | Cosine
    | WarmupCosine
    | OneCycle
    | Exponential
    | Polynomial
    | Piecewise
    | InverseSqrt
    | PlateauConfig
)

SCHEDULE_KINDS: dict[str, type[StrictModel]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "warmup_cosine": WarmupCosine,
    "one_cycle": OneCycle,
    "exponential": Exponential,
    "polynomial": Polynomial,
    "piecewise": Piecewise,
    "inverse_sqrt": InverseSqrt,
    "plateau": PlateauConfig,
}
"""The kinds a schedules table may name."""


class _Table(StrictModel):
    """A `[schedules]` table; the keys are checked by the optim room, which knows what they may name."""

    table: dict[str, Annotated[_Plain | Annotated[PlateauConfig, Tag("plateau")], Discriminator(_choice)]]


def _validated(table: Mapping[str, Any]) -> _Table:
    return _Table.model_validate({"table": dict(table)})


def schedule_problems(table: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with a schedules table; empty when nothing is.

    Args:
        table: schedule key to a number or a table with `kind`, as TOML gives it.
    """
    try:
        _validated(table)
    except ValidationError as error:
        found = problems_of(error, _Table, {"table": table})
        return [Problem(p.path[1:], p.message, p.nearest, p.kind) for p in found]
    return []


def parse_schedules(table: Mapping[str, Any]) -> dict[str, ScheduleConfig | float]:
    """The schedules of a table: a number stays a number, a table becomes the model of its kind.

    Raises:
        ScheduleError: lists everything that is wrong, with the nearest names.
    """
    problems = schedule_problems(table)
    if problems:
        lines = "\n".join(f"  - schedules.{problem}" for problem in problems)
        raise ScheduleError(
            f"the schedules table cannot be used:\n{lines}",
            fix=f"the kinds are {', '.join(SCHEDULE_KINDS)}",
            nearest=dict.fromkeys(name for p in problems for name in p.nearest),
        )
    return _validated(table).table
