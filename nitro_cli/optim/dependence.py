"""Which inputs of a traced function its outputs depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

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
    _, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return frozenset(name for name, is_used in zip(names, used, strict=False) if is_used), shapes
