"""A gradient rule that the experiment builds for every step: `grad_rule(self, hp)`, from the step's own numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nitro_cli.errors import HookError, NitroError, OptimizerError, ScheduleError, nearest
from nitro_cli.optim.gradient_rules import GradRule, checked_rule, rule_fields

__all__ = ["PlacedRule", "RuleValues", "called", "check_read", "takes_values"]


class _Names(Mapping[str, float]):
    """Numbers by attribute or by key; which were asked for is noted, and a name that is not there is an error."""

    def __init__(self, values: Mapping[str, float], read: set[str], what: str) -> None:
        self._values, self._read, self._what = values, read, what

    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            raise OptimizerError(
                f"grad_rule reads {self._what}{name}, which nothing schedules",
                why=f"scheduled there are: {', '.join(self._values) or 'none'}",
                fix=f"schedule it, or read it with a default: {self._what.rstrip('.')}.get({name!r}, ...)",
                nearest=nearest(name, self._values),
            )
        self._read.add(name)
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The number of that name, or `default` where nothing schedules it."""
        return self[name] if name in self._values else default

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class RuleValues(_Names):
    """The `hp` of `grad_rule(self, hp)`: this step's scheduled fields of the rule by name, host numbers.

    Attributes:
        bind: the step's values of the schedules `bind.<name>`, by name, which the hook places as it likes.
    """

    def __init__(self, fields: Mapping[str, float], bind: Mapping[str, float]) -> None:
        self._fields_read: set[str] = set()
        self._bind_read: set[str] = set()
        super().__init__(fields, self._fields_read, "hp.")
        self.bind = _Names(bind, self._bind_read, "hp.bind.")

    @property
    def read(self) -> tuple[frozenset[str], frozenset[str]]:
        """The fields and the bound names that were asked for."""
        return frozenset(self._fields_read), frozenset(self._bind_read)


def takes_values(hook: Any) -> bool:
    """Whether a `grad_rule` hook is `grad_rule(self, hp)`."""
    if not callable(hook):
        return False
    parameters = inspect.signature(hook).parameters.values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


@dataclass
class PlacedRule:
    """The hook with where its numbers stand in the rows of the hyperparameters.

    Attributes:
        hook: `grad_rule` of the experiment.
        first: the rule of the first step: every other is of its type and differs in its float fields alone.
        fields: scheduled field to its column.
        bind: bound name to its column.
        places: float field of the rule to its column.
    """

    hook: Callable[[RuleValues], Any]
    first: GradRule
    fields: Mapping[str, int]
    bind: Mapping[str, int]
    places: Mapping[str, int]

    def fill(self, rows: npt.NDArray[np.float64], start: int) -> None:
        """Put the fields of each step's rule into its row, in the place of the schedules' own values.

        Args:
            rows: float64[steps, columns].
            start: the optimizer step of the first row.

        Raises:
            HookError: the hook raises.
            OptimizerError: it returns another kind of rule than at the first step.
            ScheduleError: a field is not finite.
        """
        before: tuple[float, ...] | None = None
        made: Mapping[str, float] = {}
        count = len(self.fields)
        taken = [*self.fields.values(), *self.bind.values()]
        for step, row in enumerate(rows, start):
            values = tuple(row[taken].tolist())
            if values != before:
                fields = dict(zip(self.fields, values[:count], strict=True))
                hp = RuleValues(fields, dict(zip(self.bind, values[count:], strict=True)))
                before, made = values, self._checked(called(self.hook, hp, step), step)
            for name, value in made.items():
                row[self.places[name]] = value

    def _checked(self, rule: GradRule, step: int) -> dict[str, float]:
        values, known = rule_fields(rule), rule_fields(self.first)
        if type(rule) is not type(self.first) or values.keys() != known.keys():
            raise OptimizerError(
                f"grad_rule returned {rule!r} at step {step}",
                why=f"at the first step it was {self.first!r}: another kind of rule is another program",
                fix="return one type of rule, the same of its attributes floats at every step",
            )
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        if broken:
            raise ScheduleError(
                f"{broken[0]} of the gradient rule is {values[broken[0]]} at step {step}",
                where="grad_rule",
                why="a hyperparameter must be a finite number",
            )
        return values


def called(hook: Callable[[RuleValues], Any], hp: RuleValues, step: int) -> GradRule:
    """The rule of a step.

    Raises:
        HookError: the hook raises.
        OptimizerError: it reads what nothing schedules, or returns no rule.
    """
    try:
        returned = hook(hp)
    except NitroError:
        raise
    except Exception as error:
        raise HookError(
            f"grad_rule failed at step {step}", where="grad_rule(self, hp)", why=f"{type(error).__name__}: {error}"
        ) from error
    return checked_rule(returned)


def check_read(hp: RuleValues, fields: Mapping[str, str], bind: Mapping[str, str]) -> None:
    """Refuse schedules that the hook did not read, and what it read of others.

    Args:
        hp: what it was called with.
        fields, bind: name to the key of its schedule.

    Raises:
        OptimizerError: names the schedule.
    """
    strange = sorted(hp.read[0] - fields.keys())
    if strange:
        raise OptimizerError(
            f"grad_rule reads hp.{strange[0]}, which is no field of the rule",
            where="grad_rule(self, hp)",
            why=f"its scheduled fields are: {', '.join(fields) or 'none'}",
            fix=f"schedule 'bind.{strange[0]}' and read hp.bind.{strange[0]}",
        )
    for names, read, lead in ((fields, hp.read[0], "hp."), (bind, hp.read[1], "hp.bind.")):
        for name, key in names.items():
            if name not in read:
                raise OptimizerError(
                    f"the schedule {key!r} has no effect",
                    where="grad_rule(self, hp)",
                    why="the hook builds the rule without it",
                    fix=f"read {lead}{name} where the rule is built, or drop the schedule",
                )
