"""Which function lowers which primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nitro_cli.export.onnx.graph import Graph, Value

__all__ = ["LOWERINGS", "Lowering", "lowers"]

Lowering = Callable[[Graph, Any, list[Value]], list[Value]]
"""`lowering(graph, equation, inputs) -> outputs`; an equation has `params`, and `invars` and `outvars` with avals."""

LOWERINGS: dict[str, Lowering] = {}


def lowers(*primitives: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `function(graph, equation, *inputs) -> output or outputs` for primitives by name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def lowering(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
            found = function(graph, equation, *inputs)
            return found if isinstance(found, list) else [found]

        for primitive in primitives:
            LOWERINGS[primitive] = lowering
        return function

    return register
