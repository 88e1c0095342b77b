"""The named schedules that TOML and `--set` can write, as validated values; the optim room evaluates them.

Parameter names are optax's; those of `one_cycle` and `plateau` are PyTorch's. Where a number of steps is None it is
the run's horizon, its total of optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Literal, Self, dataclass_transform, get_args

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
    "Schedule",
    "ScheduleConfig",
    "WarmupCosine",
    "parse_schedules",
    "schedule_problems",
]

Steps = Annotated[int, Field(ge=1)]
Begin = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Power = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass_transform(kw_only_default=False, field_specifiers=(Field,))
class Schedule(StrictModel):
    """The parameters of a named schedule, which Python may give without their names, in the order that they have."""

    def __init__(self, *given: Any, **values: Any) -> None:
        super().__init__(**self.signature().bind_partial(*given).arguments, **values)

    @classmethod
    def signature(cls) -> Signature:
        """The parameters with their defaults."""
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=Parameter.empty if field.is_required() else field.default,
                )
                for name, field in cls.model_fields.items()
                if name != "kind"
            ]
        )


class Constant(Schedule):
    """The same value at every step (`optax.constant_schedule`); in TOML a bare number says the same."""

    kind: Literal["constant"] = Field(default="constant", init=False)
    value: Finite


class Linear(Schedule):
    """A line from one value to another (`optax.linear_schedule`); its length defaults to the rest of the horizon."""

    kind: Literal["linear"] = Field(default="linear", init=False)
    init_value: Finite
    end_value: Finite
    transition_steps: Steps | None = None
    transition_begin: Begin = 0


class Cosine(Schedule):
    """Cosine decay (`optax.cosine_decay_schedule`).

    Reference: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.
    """

    kind: Literal["cosine"] = Field(default="cosine", init=False)
    init_value: Finite
    decay_steps: Steps | None = None
    alpha: Finite = 0.0
    exponent: Power = 1.0


class WarmupCosine(Schedule):
    """A linear warmup, then cosine decay (`optax.warmup_cosine_decay_schedule`); `decay_steps` counts the warmup."""

    kind: Literal["warmup_cosine"] = Field(default="warmup_cosine", init=False)
    peak_value: Finite
    warmup_steps: Begin
    init_value: Finite = 0.0
    decay_steps: Steps | None = None
    end_value: Finite = 0.0
    exponent: Power = 1.0


class OneCycle(Schedule):
    """The one-cycle policy, argument for argument `torch.optim.lr_scheduler.OneCycleLR`; in TOML `peak` is `max_lr`.

    Reference: Smith and Topin 2018, arXiv:1708.07120.
    """

    input_names: ClassVar[dict[str, str]] = {"max_lr": "peak"}

    kind: Literal["one_cycle"] = Field(default="one_cycle", init=False)
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


class Exponential(Schedule):
    """Exponential decay (`optax.exponential_decay`)."""

    kind: Literal["exponential"] = Field(default="exponential", init=False)
    init_value: Finite
    decay_rate: Power
    transition_steps: Steps | None = None
    transition_begin: Begin = 0
    staircase: bool = False
    end_value: Finite | None = None


class Polynomial(Schedule):
    """A polynomial from one value to another (`optax.polynomial_schedule`)."""

    kind: Literal["polynomial"] = Field(default="polynomial", init=False)
    init_value: Finite
    end_value: Finite
    power: Power
    transition_steps: Steps | None = None
    transition_begin: Begin = 0


class Piecewise(Schedule):
    """Steps at boundaries, each scaling the value before it (`optax.piecewise_constant_schedule`).

    A boundary is a count from 0, as in optax; its scale is multiplied in from there on. With `interpolate_type` the
    value moves between the boundaries (`optax.piecewise_interpolate_schedule`).
    """

    kind: Literal["piecewise"] = Field(default="piecewise", init=False)
    init_value: Finite
    boundaries_and_scales: dict[Steps, Finite] | None = None
    interpolate_type: Literal["linear", "cosine"] | None = None


class InverseSqrt(Schedule):
    """A linear warmup, then `peak_value * sqrt(warmup_steps / count)`, the count being 0 at the first step.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, equation 3.
    """

    kind: Literal["inverse_sqrt"] = Field(default="inverse_sqrt", init=False)
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


ScheduleConfig = _Plain | PlateauConfig

SCHEDULE_KINDS: dict[str, type[StrictModel]] = {
    **{tag.tag: model for model, tag in map(get_args, get_args(_Plain)[1:])},
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
