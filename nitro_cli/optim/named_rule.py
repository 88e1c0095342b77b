"""What an optimizer by name is for one group: which of its options are traced, and the chain of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nitro_cli.errors import ConfigError, OptimizerError, nearest
from nitro_cli.optim.accumulators import accumulator_dtype
from nitro_cli.optim.by_name import NamedFactory
from nitro_cli.optim.factories import OPTIMIZERS, is_number
from nitro_cli.optim.hyperparameters import HyperParams, decay
from nitro_cli.optim.layout import ParamLeaf

__all__ = ["NamedRule", "named_rule"]

_OWN = ("weight_decay", "adam_weight_decay")
_MASKS = ("mask", "weight_decay_mask")
_FRAMEWORK = ("learning_rate", "weight_decay", "anchor", "decay_mask", "l2")


@dataclass(frozen=True)
class NamedRule:
    """An optimizer by name, for one group.

    Attributes:
        text: how reports name it.
        numbers: the constants that are traced, `l2` among them where there is one.
        arguments: what a schedule may drive.
        chain: makes the transformation of a step.
    """

    text: str
    numbers: Mapping[str, float]
    arguments: frozenset[str]
    chain: Callable[[HyperParams], optax.GradientTransformation]


def named_rule(wanted: NamedFactory, group: str, leaves: Sequence[ParamLeaf]) -> NamedRule:
    """Look an optimizer up and decide which of its options are traced.

    Raises:
        ConfigError: there is no optimizer of the name and version, it has no such option, needs one, or wants a number
            where text is given.
    """
    function = OPTIMIZERS.find(wanted.name, wanted.version)
    maker = _Maker(function, wanted, registered=OPTIMIZERS.id_of(function) is not None)
    maker.check_options(group)
    candidates = [name for name, value in wanted.options.items() if maker.may_be_traced(name, value)]
    traced = maker.traceable(candidates, leaves)
    baked = [n for n, value in wanted.options.items() if is_number(value) and n not in traced and n not in _OWN]
    options = ", ".join(f"{n}={value!r}{' baked in' * (n in baked)}" for n, value in wanted.options.items())
    numbers = {name: float(wanted.options[name]) for name in traced} | ({"l2": wanted.l2} if wanted.l2 else {})
    return NamedRule(
        text=f"{wanted.name}({options})" if options else wanted.name,
        numbers=numbers,
        arguments=frozenset({*maker.numeric, *traced, "l2"} - set(baked) - {"learning_rate", *_OWN}),
        chain=lambda hp: maker.chain(hp, [name for name in hp if name not in _FRAMEWORK]),
    )


class _Maker:
    """Calls the factory of optax, or the registered function, with a step's numbers."""

    def __init__(self, function: Callable[..., Any], wanted: NamedFactory, *, registered: bool) -> None:
        self._function = function
        self._wanted = wanted
        self._registered = registered
        found = list(inspect.signature(function).parameters.values())
        self._parameters = {p.name: p for p in found[registered:]}
        self._open = any(p.kind is p.VAR_KEYWORD for p in found)
        self._own = () if registered else tuple(name for name in _OWN if name in self._parameters)
        self._mask = None if registered else next((name for name in _MASKS if name in self._parameters), None)

    @property
    def numeric(self) -> list[str]:
        """The arguments that may be numbers, by their defaults."""
        named = [p for p in self._parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return [p.name for p in named if p.default is None or p.default is p.empty or is_number(p.default)]

    def check_options(self, group: str) -> None:
        given, known = self._wanted.options, self._parameters
        where = f"optimizer of the group {group!r}: {self._wanted.name}"
        for name in given:
            if name not in known and not self._open:
                fix = "set weight_decay on the experiment, or in a row of groups" if name == "weight_decay" else None
                takes = ", ".join(n for n in known if n not in _FRAMEWORK)
                raise ConfigError(
                    f"{self._wanted.name} takes no {name}",
                    where=where,
                    why=f"its options are {takes}" if takes else "it has no options",
                    fix=fix,
                    nearest=nearest(name, known),
                )
            default = known[name].default if name in known else None
            if is_number(default) and isinstance(given[name], str):
                raise ConfigError(
                    f"{name} of {self._wanted.name} should be a number, got {given[name]!r}",
                    where=where,
                    fix=f"its default is {default!r}",
                )
        lacking = [
            p.name
            for p in known.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            if p.name not in {"learning_rate", *given}
        ]
        if lacking:
            raise ConfigError(
                f"{self._wanted.name} needs {', '.join(lacking)}", where=where, fix=f"give {lacking[0]} beside its name"
            )

    def may_be_traced(self, name: str, value: Any) -> bool:
        """Whether an option is a number that stands for no count of things, and is not the decay of the group."""
        parameter = self._parameters.get(name)
        counts = parameter is not None and type(parameter.default) is int and isinstance(value, int)
        return is_number(value) and not counts and name not in _OWN

    def traceable(self, names: Sequence[str], leaves: Sequence[ParamLeaf]) -> list[str]:
        """Those of the options without whose value the factory gets by."""
        shapes = {(leaf.shape, accumulator_dtype(leaf.dtype)): leaf.decays for leaf in leaves}
        held = {str(i): jax.ShapeDtypeStruct(*key) for i, key in enumerate(shapes)}
        mask = {str(i): decays for i, decays in enumerate(shapes.values())}
        if not names or not held or self._works(names, held, mask):
            return list(names)
        return [name for name in names if self._works([name], held, mask)] if self._works([], held, mask) else []

    def _works(self, names: Collection[str], params: Mapping[str, Any], mask: Mapping[str, bool]) -> bool:
        scalar = jax.ShapeDtypeStruct((), jnp.float32)

        def step(rate: Any, coefficient: Any, values: Mapping[str, Any], params: Any) -> Any:
            made = optax.with_extra_args_support(self.chain(HyperParams(rate, coefficient, None, mask, values), names))
            return made.update(params, made.init(params), params, value=rate)

        try:
            jax.eval_shape(step, scalar, scalar, dict.fromkeys(names, scalar), dict(params))
        except Exception:  # whatever a factory raises that reads the value of a traced number
            return False
        return True

    def chain(self, hp: HyperParams, traced: Collection[str]) -> optax.GradientTransformation:
        """The transformation of a step: `l2`, the rule, the decay."""
        words = {name: value for name, value in self._wanted.options.items() if name not in self._own}
        words |= {name: hp[name] for name in traced}
        if self._registered:
            return _assembled(self._function(hp, **words), hp, decays=True)
        words |= {name: words.get(name, 0.0) for name in self._own}
        own = bool(self._own) and self._mask is not None
        if own:
            words |= dict.fromkeys(self._own, hp["weight_decay"])
            words[str(self._mask)] = dict(hp["decay_mask"])
            if hp["anchor"] is not None:
                raise OptimizerError(
                    f"{self._wanted.name} decays toward zero, and decay_anchor says otherwise",
                    fix="choose a rule without a decay of its own, such as adam, or leave the anchor at zero",
                )
        return _assembled(self._function(learning_rate=hp["learning_rate"], **words), hp, decays=own)


def _assembled(
    rule: optax.GradientTransformation, hp: HyperParams, *, decays: bool
) -> optax.GradientTransformationExtraArgs:
    """A rule with L2 before it and, unless it decays by itself, nitro's decay behind it; its state is the rule's."""
    inner, tail = optax.with_extra_args_support(rule), None if decays else decay(hp)
    l2 = hp.get("l2")

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if l2 is not None:
            mask = hp["decay_mask"]
            updates = {n: g + l2 * params[n] if mask.get(n, True) else g for n, g in updates.items()}
        updates, state = inner.update(updates, state, params, **extra)
        return updates if tail is None else tail.update(updates, optax.EmptyState(), params)[0], state

    return optax.GradientTransformationExtraArgs(inner.init, update)
