"""Which inputs of a traced function its outputs depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

__all__ = ["used_entries"]


def used_entries(function: Callable[..., Any], entries: dict[str, Any], *rest: Any) -> tuple[frozenset[str], Any]:
    """The keys of `entries` that any output of `function(entries, *rest)` depends on, and the outputs' shapes.

    Args:
        function: traceable; takes the dict of scalars first.
        entries: scalars, or shapes of scalars, by name.
        rest: further arguments, as arrays or shapes.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(entries, *rest)
    names = sorted(entries)
    used = _used_inputs(closed.jaxpr)
    return frozenset(name for name, is_used in zip(names, used, strict=False) if is_used), shapes


def _used_inputs(jaxpr: Any, outputs: list[bool] | None = None) -> list[bool]:
    """Whether each input reaches one of the wanted outputs, by a walk from the outputs back."""
    wanted = outputs if outputs is not None else [True] * len(jaxpr.outvars)
    live = {var for var, want in zip(jaxpr.outvars, wanted, strict=True) if want and _is_variable(var)}
    for equation in reversed(jaxpr.eqns):
        produced = [var in live for var in equation.outvars]
        if not any(produced) and not equation.effects:
            continue
        live.update(var for var in _needed(equation, produced) if _is_variable(var))
    return [var in live for var in jaxpr.invars]


def _needed(equation: Any, produced: list[bool]) -> Iterator[Any]:
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    inner = getattr(inner, "jaxpr", inner)
    calls = equation.primitive.name in ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")
    if calls and inner is not None and len(inner.invars) == len(equation.invars):
        used = _used_inputs(inner, produced)
        yield from (var for var, is_used in zip(equation.invars, used, strict=True) if is_used)
    else:
        # loops, branches and custom derivatives count as depending on everything they are given
        yield from equation.invars


def _is_variable(var: Any) -> bool:
    return not hasattr(var, "val")
