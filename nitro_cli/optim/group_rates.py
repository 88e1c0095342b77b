"""The rate, decay and anchor of every group, as the experiment's hooks give them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nitro_cli.errors import OptimizerError, nearest
from nitro_cli.experiment import HookTable
from nitro_cli.optim.layout import DEFAULT_GROUP, FROZEN_GROUP

__all__ = ["GroupRates", "ask_hook", "group_rates"]


@dataclass(frozen=True)
class GroupRates:
    """What one group trains with.

    Attributes:
        learning_rate: the group's base rate.
        ratio: it over the experiment's base rate.
        weight_decay: the decay coefficient.
        declares_decay: whether `group_weight_decay` gives this group another coefficient than `weight_decay`.
    """

    learning_rate: float
    ratio: float
    weight_decay: float
    declares_decay: bool


class _Named(str):
    """A group's name that remembers what it was compared with."""

    compared: set[str]

    def __new__(cls, name: str) -> _Named:
        named = super().__new__(cls, name)
        named.compared = set()
        return named

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            self.compared.add(str.__str__(other))
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def group_rates(e: Any, groups: Sequence[str]) -> dict[str, GroupRates]:
    """Ask `group_learning_rate` and `group_weight_decay` about every trained group.

    Raises:
        OptimizerError: the base rate is 0 (ratios are undefined), a value is not a finite number, a decay is negative,
            or a hook speaks of a group that no leaf is in.
    """
    base = _number(e.learning_rate, "learning_rate")
    if base == 0:
        raise OptimizerError(
            "learning_rate is 0",
            why="the groups' rates are ratios to it: lr_g(t) = schedule(t) * group_learning_rate(g) / learning_rate",
            fix="set it to the rate the ratios refer to, and schedule learning_rate to 0 where nothing should move",
        )
    common = _number(e.weight_decay, "weight_decay")
    result: dict[str, GroupRates] = {}
    for group in groups:
        rate = _number(ask_hook(e, "group_learning_rate", group, groups), f"group_learning_rate({group!r})")
        coefficient = _number(ask_hook(e, "group_weight_decay", group, groups), f"group_weight_decay({group!r})")
        if coefficient < 0:
            raise OptimizerError(
                f"the weight decay of the group {group!r} is {coefficient}", why="a negative decay grows the weights"
            )
        result[group] = GroupRates(rate, rate / base, coefficient, coefficient != common)
    return result


def ask_hook(e: Any, hook: str, group: str, groups: Sequence[str]) -> Any:
    """What the hook says of `group`.

    Raises:
        OptimizerError: the hook compares the group with one that no trained leaf is in, such as a misspelled name.
    """
    probe = _Named(group)
    value = HookTable(e).call(e, hook, probe)
    unknown = probe.compared - {*groups, DEFAULT_GROUP, FROZEN_GROUP}
    if unknown:
        name = sorted(unknown)[0]
        raise OptimizerError(
            f"{hook} names the group {name!r}, which no trained parameter is in",
            why=f"the groups are: {', '.join(groups)}",
            fix="name one of them, or let param_group return this one",
            nearest=nearest(name, groups),
        )
    return value


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)
    except OverflowError:
        raise OptimizerError(f"{what} is an integer beyond every float", why="it must be finite") from None
    except (TypeError, ValueError):
        raise OptimizerError(f"{what} is {value!r}", why="it must be a number") from None
    if not math.isfinite(number):
        raise OptimizerError(f"{what} is {number}", why="it must be finite")
    return number
