"""Optimizers by name: what is registered, what installed distributions declare, and the factories of optax."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from nitro_cli.text import Catalogue, CatalogueEntry

__all__ = ["OPTIMIZERS", "is_number", "own_decay", "register_optimizer"]


class _Optimizers(Catalogue[Callable[..., Any]]):
    """The catalogue that falls back on optax's own names; optax is imported when it is asked."""

    def known_otherwise(self, id: str, version: int) -> Callable[..., Any] | None:
        held = _of_optax().get(id) if version == 1 else None
        return None if held is None else held[1]

    def entries_otherwise(self) -> list[CatalogueEntry]:
        held = _of_optax().items()
        return [CatalogueEntry(name, 1, f"{at}:{name}", "optax") for name, (at, f) in held if _fits(f)]


OPTIMIZERS: Catalogue[Callable[..., Any]] = _Optimizers("optimizer", "nitro.optimizers", key="name")
"""The optimizers by (name, version): optax's, those of `register_optimizer` and of the group `nitro.optimizers`."""


register_optimizer = OPTIMIZERS.register
"""`@register_optimizer(name, version=1)`: a decorator that makes a function known as `{ name = name }`.

It is called as `f(hp, **options)` for each group and returns an optax chain that ends with `decay(hp)`, as the hook
`optimizer(self, group, hp)` does, and is checked as that is.
"""


def own_decay(name: str, version: int) -> float:
    """The decay that an optimizer has by default; 0 for one without.

    Raises:
        ConfigError: there is no optimizer of the name and version.
    """
    parameter = inspect.signature(OPTIMIZERS.find(name, version)).parameters.get("weight_decay")
    default: Any = None if parameter is None else parameter.default
    return float(default) if is_number(default) else 0.0


def is_number(value: Any) -> bool:
    """Whether an option is a number, which may be traced; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_optax() -> dict[str, tuple[str, Callable[..., Any]]]:
    """What optax and optax.contrib have that takes a learning rate and makes a whole optimizer, with the module."""
    import optax
    import optax.contrib

    found: dict[str, tuple[str, Callable[..., Any]]] = {}
    for module in (optax.contrib, optax):
        for name, value in vars(module).items():
            made = inspect.isfunction(value) or isinstance(value, functools.partial)  # as `optax.nadam` is
            if (
                made
                and not name.startswith(("_", "scale_by_"))
                and "learning_rate" in inspect.signature(value).parameters
            ):
                found[name] = (module.__name__, value)
    return found


def _fits(factory: Callable[..., Any]) -> bool:
    """Whether a factory makes, of its traced learning rate, an optimizer that trains by one gradient a step."""
    import jax
    import jax.numpy as jnp
    import optax

    def step(rate: Any, params: Any) -> Any:
        made = optax.with_extra_args_support(factory(learning_rate=rate))
        state = made.init(params)
        return made.update(params, state, params, value=rate), state

    held = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _, state = jax.eval_shape(step, jax.ShapeDtypeStruct((), jnp.float32), {"w": held})
        except Exception:  # whatever a factory raises that wants more than that
            return False
    return not isinstance(state, optax.contrib.ScheduleFreeState)
