"""`Experiment`: fields, knobs and hooks. What researchers subclass, `nitro_cli.Experiment`, knows presets beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from nitro_cli.errors import ConfigError, HostFieldError

from .callback import CallbacksKnob
from .content import is_array, same_content
from .declaration import ExperimentMeta
from .hooks import Hooks
from .kinds import FieldKind
from .knobs import EMA, Checkpointer, CheckpointerKnob, Duration, EarlyStoppingKnob, EvalWeights, MonitorKnob
from .loggers import JSONLogger, LoggerKnob
from .part_leaves import PartField, fields_inside, graphconst_value, replaced_inside
from .problems import Problem, config_error, problems_of
from .sentinel import StrippedHost
from .strict_model import StrictModel, unboxed

__all__ = [
    "KNOBS",
    "Experiment",
    "device_names",
    "field_value",
    "part_fields",
    "validation_problems",
]


class Experiment(Hooks, StrictModel, metaclass=ExperimentMeta):
    """A training experiment: fields and hooks. Subclass it; see the documentation of fields and hooks.

    The fields below are the run knobs. Each can be set by a preset, by `--set`, by a flag and as a keyword of
    `Nitro`; a subclass changes a default by assigning it.

    Raises:
        ConfigError: on construction, listing every value that cannot be used and every unknown name.
    """

    seed: int = Field(default=42, ge=0, lt=2**63)
    """Seeds the initialisation, the shuffles and the random keys of the run."""

    max_epochs: int = Field(default=1, ge=1)
    """How many epochs to train for."""

    accum: int = Field(default=1, ge=1)
    """Micro-batches per optimizer step."""

    n_devs: int | None = Field(default=None, ge=1)
    """Local devices that share each batch; None is all visible ones."""

    run_dir: Path | None = None
    """Where runs are written; None is `runs/<ClassName>`."""

    gradient_clip_norm: float = Field(default=0.0, ge=0)
    """The largest global norm of the gradient; 0 is off."""

    check_divergence: bool | Literal["skip"] = True
    """Whether a non-finite loss or gradient stops the run; `"skip"` leaves such a step out, and stops at the tenth in a
    row."""

    autolog_schedules: bool = True
    """Whether the varying schedule values are logged on the train lines."""

    log_every_n_steps: int = Field(default=1, ge=1)
    """Optimizer steps between two train lines."""

    eval_loss: bool = False
    """Whether evaluation also reports the loss when the experiment has metrics of its own."""

    monitor: MonitorKnob = None
    """The metric the run is judged by and which way is better, such as `("acc", "max")`."""

    checkpointer: CheckpointerKnob = Checkpointer()
    """Which checkpoints are kept; None writes none."""

    early_stop: EarlyStoppingKnob = None
    """The stop rule, such as `EarlyStopping(patience=5)`; None never stops early."""

    ema: EMA | None = None
    """The exponential moving average of the weights; None is off."""

    learning_rate: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    """The base learning rate; a traced input of the program."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The decoupled weight decay; a traced input of the program."""

    logger: LoggerKnob = JSONLogger()
    """Where metrics are written; None is off."""

    eval_weights: EvalWeights | None = None
    """Which weights evaluation reads; None is the EMA when there is one."""

    checkpoint_every_n_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps between two resume points inside an epoch; None is off."""

    checkpoint_every_minutes: float | None = Field(default=None, gt=0)
    """Minutes between two resume points inside an epoch; None is off."""

    max_time: Duration | None = None
    """Seconds, or text such as `"55m"`, after which the run stops with its state saved; None is no limit."""

    callbacks: CallbacksKnob = ()
    """What watches the run, such as `[{ id = "save_predictions" }]`."""

    sharding: Literal["replicated", "fsdp"] = "replicated"
    """How the parameters lie on several devices: whole on each, or each in parts over all (`fsdp`)."""

    __nitro_kinds__: ClassVar[dict[str, FieldKind]]
    __nitro_parts__: ClassVar[tuple[str, ...]]
    __nitro_own__: ClassVar[tuple[str, ...]]
    __nitro_source__: ClassVar[tuple[str, int]]
    __nitro_sentinels__: ClassVar[dict[str, StrippedHost] | None]

    def __init__(self, /, **values: Any) -> None:
        given = unboxed(type(self), values)
        try:
            self.__pydantic_validator__.validate_python(given, self_instance=self)
        except ValidationError as error:
            raise config_error(type(self), problems_of(error, type(self), given)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise ConfigError(
                f"{type(self).__name__}.{name} cannot be assigned",
                why="an experiment is frozen",
                fix=f"e = e.replace({name}=...)",
            )
        super().__setattr__(name, value)

    def replace(self, **values: Any) -> Self:
        """A copy with other values for the named fields, validated like a new one.

        A field inside a part is named with dots: `e.replace(**{"task.label_smoothing": 0.1})`.

        Raises:
            ConfigError: an unknown field, or a value that cannot be used.
        """
        current = {name: self.__dict__[name] for name in type(self).model_fields}
        if any(isinstance(value, StrippedHost) for value in current.values()):
            raise HostFieldError(
                f"replace was called on the view of a {type(self).__name__} that traced code receives",
                why="its Host fields are stripped",
                fix="call replace on the experiment itself, outside the traced hooks",
            )
        given = dict(values)
        for name in values:
            field, *path = name.split(".")
            if path and field in type(self).__nitro_parts__:
                held = given.get(field, current[field])
                given[field] = replaced_inside(held, path, given.pop(name), field)
        replaced = type(self)(**{**current, **given})
        object.__setattr__(replaced, "__pydantic_fields_set__", self.model_fields_set | given.keys())
        return replaced

    def graphconst_items(self) -> dict[str, Any]:
        """The GraphConst fields and their values, in declaration order; of a part its structure, as a mapping. A Device
        field that is None is among them: it is no input of the program."""
        return {
            name: graphconst_value(self.__dict__[name])
            for name, kind in type(self).__nitro_kinds__.items()
            if kind is FieldKind.GRAPHCONST or (kind is FieldKind.DEVICE and self.__dict__[name] is None)
        }

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return all(same_content(mine[name], theirs[name]) for name in type(self).model_fields)

    def __hash__(self) -> int:
        scalars = (bool, int, float, str, type(None))
        values = (self.__dict__[name] for name in type(self).model_fields)
        return hash((type(self), *(v for v in values if isinstance(v, scalars) and v == v)))

    def __repr_args__(self) -> Any:
        for name in type(self).model_fields:
            value = self.__dict__[name]
            if name not in KNOBS or (
                not isinstance(value, StrippedHost) and not same_content(value, Experiment.model_fields[name].default)
            ):
                yield name, _Summary(value) if is_array(value) and value.shape != () else value


class _Summary:
    def __init__(self, array: Any) -> None:
        self._text = f"<{array.dtype}{list(array.shape)}>"

    def __repr__(self) -> str:
        return self._text


KNOBS: tuple[str, ...] = tuple(Experiment.model_fields)
"""The run knobs: the fields that every experiment inherits."""


def part_fields(e: Experiment) -> list[PartField]:
    """The fields inside the parts of an experiment, in declaration order."""
    return list(fields_inside(e, type(e).__nitro_parts__))


def device_names(e: Experiment) -> tuple[str, ...]:
    """The Device fields of an experiment in declaration order, then those inside its parts, by dotted names; but for
    those that are None, which no program takes.

    Raises:
        ConfigError: two parts have one name.
    """
    names = [name for name, value in _device_values(e) if value is not None]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two parts of {type(e).__name__} are both called {twice.rpartition('.')[0]}",
            where=f"{type(e).__name__}.{twice}",
            why="a Device field is known by its dotted name",
            fix="keep one of them",
        )
    return tuple(names)


def unset_device_names(e: Experiment) -> tuple[str, ...]:
    """The Device fields that are None."""
    return tuple(name for name, value in _device_values(e) if value is None)


def _device_values(e: Experiment) -> list[tuple[str, Any]]:
    own = [(name, e.__dict__[name]) for name, kind in type(e).__nitro_kinds__.items() if kind is FieldKind.DEVICE]
    return own + [(leaf.path, leaf.value) for leaf in part_fields(e) if leaf.kind is FieldKind.DEVICE]


def field_value(e: Experiment, name: str) -> Any:
    """The value of a field, which may lie inside a part, by its dotted name.

    Raises:
        KeyError: there is no such field.
    """
    if name in type(e).model_fields:
        return getattr(e, name)
    return {leaf.path: leaf.value for leaf in part_fields(e)}[name]


def validation_problems(cls: type[Experiment], values: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with `values` for `cls`, without building the experiment; empty when nothing is.

    Args:
        cls: the experiment class.
        values: field values as Python or as TOML gives them.
    """
    given = unboxed(cls, values)
    try:
        cls.__pydantic_validator__.validate_python(given, self_instance=object.__new__(cls))
    except ValidationError as error:
        return problems_of(error, cls, given)
    return []
