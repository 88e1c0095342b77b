"""How the `optimizer` hook of an experiment is read: its level, what it accepts, what it builds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nitro_cli.errors import HookError, NitroError, OptimizerError, nearest
from nitro_cli.experiment import HookTable
from nitro_cli.optim.by_name import NamedFactory
from nitro_cli.optim.hyperparameters import HyperParams, UnknownHyperparameter
from nitro_cli.optim.layout import ParamLeaf
from nitro_cli.optim.named_rule import named_rule
from nitro_cli.text import exception_text

__all__ = ["GroupRule", "build_transformation", "check_answered", "group_rule", "is_transformation"]

OWN_DECAY = ("weight_decay", "weight_decay_rate", "adam_weight_decay")


@dataclass(frozen=True)
class GroupRule:
    """The optimizer of one group.

    Attributes:
        group: parameter group.
        level: 0 for the default, 1 for an optax factory, 2 for a hook that builds the chain.
        name: how reports name the rule.
        factory: the optax factory of levels 0 and 1.
        arguments: hyperparameters it takes by name; at level 2 those the hook read.
        open: whether it may take any other name too.
        own_decay: the factory's own decay argument, None without one or when a partial sets all of them to 0.
        numbers: hyperparameters that are traced constants unless a schedule drives them.
        chain: at level 2 what builds the chain; None asks the hook.
    """

    group: str
    level: int
    name: str
    factory: Callable[..., Any] | None
    arguments: frozenset[str]
    open: bool = False
    own_decay: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    chain: Callable[[HyperParams], optax.GradientTransformation] | None = None


def is_transformation(value: Any) -> bool:
    """Whether `value` is a built optax transformation."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def group_rule(e: Any, group: str, leaves: tuple[ParamLeaf, ...], candidates: Iterable[str]) -> GroupRule:
    """Read the `optimizer` hook for one group.

    Args:
        e: the experiment.
        group: parameter group.
        leaves: its leaves; a level 2 hook is called once, traced, with their mask.
        candidates: schedule names that may belong to this group.

    Raises:
        OptimizerError: the hook's signature or its return does not fit, or its factory cannot be given traced
            hyperparameters by name.
    """
    level = _hook_level(e)
    if level == 2:
        names = frozenset(_names_read(e, group, leaves, candidates))
        return GroupRule(group, 2, f"optimizer(group={group!r}, hp)", None, names, open=True)
    factory = None if level == 0 else HookTable(e).call(e, "optimizer", *([group] if level == 1 else []))
    if isinstance(factory, NamedFactory):
        named = named_rule(factory, group, leaves)
        return GroupRule(group, 2, named.text, None, named.arguments, numbers=named.numbers, chain=named.chain)
    if factory is None:
        return _factory_rule(group, optax.radam, level=0)
    return _factory_rule(group, factory, level=1)


def check_answered(e: Any, rules: Mapping[str, GroupRule]) -> None:
    """Refuse an `optimizer` hook that returned None for every group: a forgotten return would train by the default.

    Raises:
        OptimizerError: it did. A hook may leave single groups to the default so.
    """
    if rules and _hook_level(e) != 0 and all(rule.level == 0 for rule in rules.values()):
        raise OptimizerError(
            "the optimizer hook returned None",
            where=f"optimizer of the group{'s' * (len(rules) > 1)} {', '.join(map(repr, rules))}",
            why="None leaves a group to the default, and no group is left that has an optimizer of its own",
            fix="return a factory, such as optax.adam; for the default leave the hook out, or return optax.radam",
        )


def _hook_level(e: Any) -> int:
    """0 without a hook, 1 for `(self, group)`, 2 for `(self, group, hp)`, -1 for `(self)`."""
    hook = HookTable(e).bound(e, "optimizer")
    if hook is None:
        return 0
    if not callable(hook):
        raise OptimizerError(
            f"optimizer is {type(hook).__name__}",
            fix="make it a method: def optimizer(self, group): return optax.adam",
        )
    positional = [
        p for p in inspect.signature(hook).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) > 2 or any(p.name == "learning_rate" for p in positional):
        raise OptimizerError(
            f"optimizer takes ({', '.join(p.name for p in positional)})",
            why="the hook is optimizer(self, group), which returns a factory, or optimizer(self, group, hp)",
            fix="return the factory from the hook: def optimizer(self, group): return optax.adam",
        )
    return {0: -1, 1: 1, 2: 2}[len(positional)]


def _factory_rule(group: str, factory: Any, *, level: int) -> GroupRule:
    name = _factory_name(factory)
    where = f"optimizer of the group {group!r}: {name}"
    if is_transformation(factory):
        raise OptimizerError(
            "the optimizer hook returned a built transformation",
            where=f"optimizer of the group {group!r}",
            why="its hyperparameters are constants in it, so neither a rate nor a schedule could reach it",
            fix="return the factory (optax.adam), functools.partial(optax.adam, b1=0.8), or take (self, group, hp)",
        )
    if not callable(factory):
        raise OptimizerError(f"the optimizer hook returned {type(factory).__name__}", fix="return optax.adam")
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        raise OptimizerError(
            f"the optimizer hook returned {name}, whose arguments cannot be told", where=where, fix="return optax.adam"
        ) from None
    bound = factory.keywords if isinstance(factory, functools.partial) else {}
    if "learning_rate" in bound:
        raise OptimizerError(
            "the factory sets learning_rate itself",
            where=where,
            why="the framework gives every group its rate: learning_rate, the group's ratio and the schedule",
            fix="drop it from the partial and set learning_rate on the experiment",
        )
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "learning_rate" not in parameters and not keywords:
        raise OptimizerError(
            "the factory takes no learning_rate",
            where=where,
            why="a level 1 factory is built with learning_rate=... by name",
            fix="build the chain yourself: def optimizer(self, group, hp), ending it with decay(hp)",
        )
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "learning_rate"
    ]
    if required:
        raise OptimizerError(
            f"the factory needs {', '.join(required)}",
            where=where,
            why="the framework supplies learning_rate and the scheduled hyperparameters only",
            fix=f"give the rest by functools.partial({name}, {required[0]}=...), or take (self, group, hp)",
        )
    own = [argument for argument in OWN_DECAY if argument in parameters]
    explicit_off = bool(own) and all(argument in bound and not bound[argument] for argument in own)
    return GroupRule(
        group=group,
        level=level,
        name=name,
        factory=factory,
        arguments=frozenset(n for n, p in parameters.items() if _may_be_number(p)),
        open=keywords,
        own_decay=own[0] if own and not explicit_off else None,
    )


def _may_be_number(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        return False
    default = parameter.default
    return (
        default is parameter.empty
        or default is None
        or (isinstance(default, int | float) and default is not True and default is not False)
    )


def _factory_name(factory: Any) -> str:
    if isinstance(factory, functools.partial):
        given = ", ".join(f"{key}={value!r}" for key, value in factory.keywords.items())
        return f"{_factory_name(factory.func)}({given})" if given else _factory_name(factory.func)
    name = getattr(factory, "__qualname__", type(factory).__name__)
    module = str(getattr(factory, "__module__", "") or "")
    if module.startswith("optax.contrib"):
        return f"optax.contrib.{name}"
    return f"optax.{name}" if module.startswith("optax") else name


def _names_read(e: Any, group: str, leaves: tuple[ParamLeaf, ...], candidates: Iterable[str]) -> set[str]:
    """Call a level 2 hook once under tracing and note which hyperparameters it asks for."""
    names = sorted(set(candidates) - {"learning_rate", "weight_decay", "anchor", "decay_mask"})
    read: set[str] = set()
    mask = {leaf.text: leaf.decays for leaf in leaves}
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def call(rate: Any, coefficient: Any, scheduled: Mapping[str, Any]) -> int:
        hp = HyperParams(rate, coefficient, None, mask, scheduled)
        try:
            call_level2(e, group, hp, None)
        finally:
            read.update(hp.read_names)
        return 0

    jax.eval_shape(call, scalar, scalar, dict.fromkeys(names, scalar))
    return read - {"learning_rate", "weight_decay", "anchor", "decay_mask"}


def call_level2(
    e: Any, group: str, hp: HyperParams, chain: Callable[[HyperParams], Any] | None
) -> optax.GradientTransformation:
    """Call a level 2 hook, or what stands in its place, and check what it returned."""
    try:
        built = HookTable(e).call(e, "optimizer", group, hp) if chain is None else chain(hp)
    except UnknownHyperparameter as error:
        name = str(error)
        raise OptimizerError(
            f"the optimizer reads hp.{name}, which nothing provides",
            where=f"optimizer of the group {group!r}",
            why=f"hp has {', '.join(sorted(hp))}",
            fix=f"schedule {name!r}, or read it with a default: hp.get({name!r}, ...)",
            nearest=nearest(name, hp),
        ) from error
    if not is_transformation(built):
        raise OptimizerError(
            f"the optimizer hook returned {type(built).__name__}",
            where=f"optimizer of the group {group!r}",
            why="with (self, group, hp) it builds the transformation itself",
            fix="return optax.chain(..., decay(hp)), or take (self, group) and return a factory",
        )
    return built


def build_transformation(
    e: Any, rule: GroupRule, hp: HyperParams, scheduled: Mapping[str, Any]
) -> optax.GradientTransformationExtraArgs:
    """The group's optax transformation with this step's hyperparameters."""
    if rule.level == 2:
        return optax.with_extra_args_support(call_level2(e, rule.group, hp, rule.chain))
    assert rule.factory is not None
    try:
        built = rule.factory(learning_rate=hp["learning_rate"], **scheduled)
    except (NitroError, jax.errors.JAXTypeError):
        raise  # the latter: it reads the value of a traced number, which the trial explains
    except Exception as error:
        raise HookError(
            f"the optimizer factory raised {exception_text(error)}",
            where=f"optimizer of the group {rule.group!r}: {rule.name}",
            why=f"it was called with learning_rate and {', '.join(scheduled) or 'nothing else'}, as traced numbers",
        ) from error
    if not is_transformation(built):
        raise OptimizerError(
            f"the factory returned {type(built).__name__}",
            where=f"optimizer of the group {rule.group!r}: {rule.name}",
            fix="a factory returns an optax.GradientTransformation",
        )
    return optax.with_extra_args_support(built)
