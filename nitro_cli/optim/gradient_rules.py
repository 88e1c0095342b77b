"""Which gradient a micro-batch contributes: the plain one, or the one at perturbed parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import OptimizerError
from nitro_cli.optim.norms import global_norm

__all__ = ["ASAM", "SAM", "GradRule", "PerturbRule", "SingleGrad", "checked_rule", "rule_fields", "with_fields"]


class GradRule:
    """Base of the gradient rules."""


@dataclass(frozen=True)
class SingleGrad(GradRule):
    """The gradient at the parameters."""


class PerturbRule(GradRule):
    """Take the gradient at `params + perturbation`, the perturbation made from the gradient at `params`.

    Subclass it, as a dataclass say, and write `perturbation`. Every attribute that holds a float becomes a traced
    input of the train program under its name, so that another value never recompiles and a schedule can drive it.

    Example:
        >>> @dataclass(frozen=True)
        ... class SignStep(PerturbRule):
        ...     rho: float = 0.01
        ...     def perturbation(self, grads, params, adaptive):
        ...         return {text: self.rho * jnp.sign(g) for text, g in grads.items()}
    """

    def perturbation(
        self, grads: Mapping[str, jax.Array], params: Mapping[str, jax.Array], adaptive: Mapping[str, bool]
    ) -> Mapping[str, jax.Array]:
        """What to add to the parameters, traced.

        Args:
            grads: gradient at `params` by path text. Frozen leaves and those `no_perturb` excludes are not in it.
            params: the parameters of the same leaves.
            adaptive: what `adaptive_perturb` said of each.

        Returns:
            One array per entry of `grads`, of the same shape.
        """
        raise NotImplementedError


def _inverse_norm(values: Mapping[str, jax.Array]) -> jax.Array:
    """1 / the global norm, 0 for an all-zero tree."""
    norm = global_norm(values.values())
    return jnp.where(norm > 0, 1.0 / jnp.where(norm > 0, norm, 1.0), 0.0)


@dataclass(frozen=True)
class SAM(PerturbRule):
    """Sharpness-aware minimization: the gradient at `w + rho * g / |g|`.

    Reference: Foret et al. 2021, arXiv:2010.01412, equation 2 with p = 2.

    Args:
        rho: radius of the perturbation, 0.05 in the paper. Schedulable.
    """

    rho: float

    def __post_init__(self) -> None:
        _check_sizes(self)

    def perturbation(
        self, grads: Mapping[str, jax.Array], params: Mapping[str, jax.Array], adaptive: Mapping[str, bool]
    ) -> Mapping[str, jax.Array]:
        """`rho * g / |g|`, zero for a zero gradient."""
        scale = self.rho * _inverse_norm(grads)
        return {text: scale * g for text, g in grads.items()}


@dataclass(frozen=True)
class ASAM(PerturbRule):
    """Adaptive SAM: the perturbation of each weight in proportion to its size.

    The gradient at `w + rho * T^2 g / |T g|` with `T = |w| + eta`, and T = 1 where `adaptive_perturb` declines.
    Reference: Kwon et al. 2021, arXiv:2102.11600, equation 7.

    Args:
        rho: relative radius, about ten times SAM's. Schedulable.
        eta: what is added to the size of each weight.
    """

    rho: float
    eta: float = 0.01

    def __post_init__(self) -> None:
        _check_sizes(self)

    def perturbation(
        self, grads: Mapping[str, jax.Array], params: Mapping[str, jax.Array], adaptive: Mapping[str, bool]
    ) -> Mapping[str, jax.Array]:
        """`rho * T^2 g / |T g|`, zero for a zero gradient."""
        size = {t: jnp.abs(w) + self.eta if adaptive[t] else jnp.ones_like(w) for t, w in params.items()}
        scaled = {text: size[text] * g for text, g in grads.items()}
        scale = self.rho * _inverse_norm(scaled)
        return {text: scale * size[text] * g for text, g in scaled.items()}


def _check_sizes(rule: Any) -> None:
    for name, value in vars(rule).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not 0 <= value < float("inf"):
                raise OptimizerError(f"{type(rule).__name__}({name}={value!r})", why="it must be 0 or more")
            object.__setattr__(rule, name, float(value))


def checked_rule(returned: Any) -> GradRule:
    """What a `grad_rule` hook returned; None is the plain gradient.

    Raises:
        OptimizerError: it is not a gradient rule.
    """
    if returned is None:
        return SingleGrad()
    if not isinstance(returned, GradRule):
        name = f"the class {returned.__name__}" if isinstance(returned, type) else type(returned).__name__
        raise OptimizerError(
            f"grad_rule returned {name}",
            why="a gradient rule is SingleGrad(), SAM(rho), ASAM(rho) or an object of a PerturbRule subclass",
            fix="return an instance, such as SAM(0.05)",
        )
    if isinstance(returned, PerturbRule) and type(returned).perturbation is PerturbRule.perturbation:
        raise OptimizerError(
            f"the gradient rule {type(returned).__name__} has no method `perturbation`",
            fix="write perturbation(self, grads, params, adaptive), which returns what to add to the parameters",
        )
    return returned


def rule_fields(rule: GradRule) -> dict[str, float]:
    """The attributes of a rule that hold a float: its traced, schedulable fields."""
    values = vars(rule) if hasattr(rule, "__dict__") else {}
    return {name: value for name, value in values.items() if type(value) is float}


def with_fields(rule: GradRule, values: Mapping[str, Any]) -> GradRule:
    """A copy of `rule` whose fields hold traced values."""
    changed = copy.copy(rule)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed
