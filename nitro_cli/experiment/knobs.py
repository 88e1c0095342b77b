"""The value objects that run knobs hold, and how a knob accepts a user's own object in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nitro_cli.errors import ConfigError

from .protocols import CheckpointStore, StopRule
from .selectors import Best, Last, Mode, Selector
from .strict_model import StrictModel

__all__ = [
    "EMA",
    "Checkpointer",
    "CheckpointerKnob",
    "Criterion",
    "Duration",
    "EarlyStopping",
    "EarlyStoppingKnob",
    "EvalWeights",
    "Monitor",
    "MonitorKnob",
    "PartOrOwn",
    "parse_duration",
]

EvalWeights = Literal["ema", "raw"]
"""Which weights evaluation reads; a knob of None means the EMA when there is one."""


class _MetricAndMode(NamedTuple):
    metric: str
    mode: Mode


class Criterion(_MetricAndMode):
    """A metric, and which way is better: what rules and the ranking of checkpoints go by. Equal to the plain pair."""

    __slots__ = ()

    def __new__(cls, metric: str, mode: Mode) -> Self:
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"a monitor's metric is a name, got {metric!r}")
        if mode not in get_args(Mode):
            raise ConfigError(f"a monitor's mode is 'min' or 'max', got {mode!r}", where=f"monitor {metric!r}")
        return super().__new__(cls, metric, mode)


class Monitor(StrictModel):
    """The one metric a run is judged by: `Monitor("acc", "max")`, or `("acc", "max")` for short.

    A metric of the validation, or of the train split: `train_loss`, `train/<metric>`, which need no `val`.
    """

    metric: str = Field(min_length=1)
    """The metric's name."""

    mode: Mode | None = None
    """Which way is better; None is the metric's own direction, where it has one."""

    on_missing: Literal["error", "skip"] = "error"
    """An epoch without a value fails the run, or decides nothing: no patience, no plateau, no score."""

    on_nonfinite: Literal["error", "skip"] = "skip"
    """A value that is not finite fails the run, or is a bad epoch."""

    def __init__(self, metric: str, mode: Mode | None = None, **values: Any) -> None:
        super().__init__(metric=metric, mode=mode, **values)

    @model_validator(mode="before")
    @classmethod
    def _refuse_text(cls, table: Any) -> Any:
        if isinstance(table, str):
            raise ValueError(f'should be a table: {{ metric = "{table}" }}')
        return table

    @property
    def is_pair(self) -> bool:
        """Whether a metric with its mode says it all."""
        return self.mode is not None and (self.on_missing, self.on_nonfinite) == ("error", "skip")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple):
            return self.is_pair and (self.metric, self.mode) == other
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.metric, self.mode))


class _ReadAsMonitor:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, inner: Callable[[Any], Any]) -> Any:
            if isinstance(value, list | tuple):
                if len(value) != 2:
                    told = "should be a metric and a mode, such as ('acc', 'max'), or a table, got {given}"
                    raise PydanticCustomError("monitor", told, {"given": repr(value)})
                try:
                    return Criterion(*value)
                except ConfigError as error:
                    raise PydanticCustomError("monitor", "{why}", {"why": error.what}) from None
            made = inner(value)
            return Criterion(made.metric, made.mode) if made.is_pair else made

        def dumped(value: Any, info: Any) -> Any:
            if isinstance(value, Monitor):
                return value.model_dump(mode=info.mode)
            return list(value) if isinstance(value, tuple) and info.mode == "json" else value

        as_given = core_schema.plain_serializer_function_ser_schema(dumped, info_arg=True)
        inner = handler.generate_schema(Monitor)
        return core_schema.nullable_schema(
            core_schema.no_info_wrap_validator_function(read, inner, serialization=as_given)
        )


MonitorKnob = Annotated[Monitor | tuple[str, Mode] | None, _ReadAsMonitor()]
"""The type of the `monitor` knob: a `Monitor`, or a plain pair of a metric and its mode."""


class _Follows(StrictModel):
    """A rule that follows the run's monitor unless both `metric` and `mode` are given."""

    metric: str | None = None
    """The validation metric to follow; None follows the run's monitor."""

    mode: Mode | None = None
    """Which way the metric is better; given together with `metric`."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.metric is None) != (self.mode is None):
            given, other = ("metric", "mode") if self.mode is None else ("mode", "metric")
            raise ValueError(f"{given} without {other}: give both, or neither to follow the run's monitor")
        return self

    def watched(self, monitor: Criterion | None) -> Criterion | None:
        """The metric and mode that the rule goes by: its own, or the run's monitor, which may be None."""
        return monitor if self.metric is None or self.mode is None else Criterion(self.metric, self.mode)


class EarlyStopping(_Follows):
    """Stop training when a validation metric stops improving.

    An epoch improves when it beats the best so far by more than `min_delta`; the run stops after `patience` epochs
    in a row without improvement.
    """

    patience: int = Field(default=5, ge=1)
    """Epochs in a row without improvement before the run stops."""

    min_delta: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    """How much an epoch must beat the best by, absolute."""


class EMA(StrictModel):
    """An exponential moving average of the weights: `ema = b * ema + (1 - b) * w` after every `every`-th step.

    Under `warmup`, `b = min(beta, (1 + t) / (10 + t))` with t the optimizer step.
    """

    beta: float = Field(ge=0, lt=1)
    """How much of the average is kept per update."""

    warmup: bool = True
    """Whether the average follows the weights faster in the first steps."""

    every: int = Field(default=1, ge=1)
    """Optimizer steps between two updates."""

    def __init__(self, beta: float, **values: Any) -> None:
        super().__init__(beta=beta, **values)


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str | Selector) else value


class Checkpointer(_Follows):
    """Which checkpoints a run keeps: the union of what the selectors in `keep` pick."""

    keep: Annotated[tuple[Selector, ...], BeforeValidator(_as_tuple)] = (Best(3), Last(1))
    """The selectors; one alone needs no tuple. As text: `["best(3)", "last(1)"]`."""

    scope: Literal["run", "dir"] = "run"
    """Whether `Best` ranks this run's checkpoints or all runs' of the directory."""

    if TYPE_CHECKING:

        def __init__(self, *, keep: Selector | str | Sequence[Selector | str] = ..., **values: Any) -> None: ...

    @model_validator(mode="after")
    def _keepable(self) -> Self:
        if not self.keep:
            raise ValueError("keep is empty; a knob of None switches checkpoints off")
        for selector in self.keep:
            if isinstance(selector, Best) and selector.among is not None:
                raise ValueError(f"keep has {selector}: among is for loading, retention ranks every entry")
        return self


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_SECONDS = (86400.0, 3600.0, 60.0, 1.0)


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `55m`, `1h30m`, `2d`, `90s` or `90`.

    Raises:
        ConfigError: the text is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ConfigError(f"{text!r} is no duration", fix="write it like 55m, 1h30m, 2d or 90s")
    return sum(float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part)


def _seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ConfigError as error:
            raise PydanticCustomError("duration", "{why}; write it like 55m or 1h30m", {"why": error.what}) from None
    return value


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""Seconds; also read from text such as `"55m"` and from a timedelta."""


class PartOrOwn:
    """Annotation metadata of a knob that holds one of our value objects, or a user's object in its place.

    Args:
        models: our value objects; more than one are told apart by their `kind`.
        methods: what the user's own object must have.
        what: the part's name, for the error.
    """

    def __init__(self, models: tuple[type[StrictModel], ...], methods: tuple[str, ...], what: str) -> None:
        self.models = models
        self.methods = methods
        self.what = what

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schemas = {str(_kind(model)): handler.generate_schema(model) for model in self.models}
        inner: CoreSchema
        if len(schemas) == 1:
            inner = next(iter(schemas.values()))
        else:
            inner = core_schema.tagged_union_schema(dict(schemas), discriminator="kind")
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            inner,
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )

    def _validate(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        if value is None or isinstance(value, self.models):
            return value
        if isinstance(value, Mapping):
            return handler(dict(value))
        if isinstance(value, (str, bytes, bool, int, float, list, tuple, type)):
            names = " or ".join(model.__name__ for model in self.models)
            raise PydanticCustomError(
                "part",
                "should be a {names}, a table, or your own {what}, got {given}",
                {"names": names, "what": self.what, "given": f"{value!r} ({type(value).__name__})"},
            )
        missing = [name for name in self.methods if not callable(getattr(value, name, None))]
        if missing:
            raise PydanticCustomError(
                "part",
                "{given} is no {what}: it has no {missing}",
                {
                    "given": type(value).__name__,
                    "what": self.what,
                    "missing": " and no ".join(f"{m}()" for m in missing),
                },
            )
        return value


CheckpointerKnob = Annotated[
    Checkpointer | CheckpointStore | None,
    PartOrOwn((Checkpointer,), ("save", "load", "find_latest", "find_best"), "checkpointer"),
]
"""The type of the `checkpointer` knob."""

EarlyStoppingKnob = Annotated[
    EarlyStopping | StopRule | None, PartOrOwn((EarlyStopping,), ("should_stop",), "stop rule")
]
"""The type of the `early_stop` knob."""


def _kind(model: type[StrictModel]) -> Any:
    info = model.model_fields.get("kind")
    return model.__name__ if info is None else info.default


def _dump(value: Any, info: Any) -> Any:
    return value.model_dump(mode=info.mode) if isinstance(value, StrictModel) else value
