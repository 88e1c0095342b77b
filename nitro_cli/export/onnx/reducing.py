"""Reductions over axes and over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import Graph, Value
from nitro_cli.export.onnx.lowerings import lowers

__all__: list[str] = []

_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}


@lowers("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
def _reduce(graph: Graph, equation: Any, x: Value) -> Value:
    axes = graph.ints(equation.params["axes"])
    if not equation.params["axes"]:
        return graph.op("Identity", x)
    return graph.op(_REDUCTIONS.get(equation.primitive.name, "ReduceSum"), x, axes, keepdims=0)


@lowers("reduce_and", "reduce_or")
def _reduce_logical(graph: Graph, equation: Any, x: Value) -> Value:
    kind = "ReduceMin" if equation.primitive.name == "reduce_and" else "ReduceMax"
    reduced = graph.op(kind, graph.cast(x, np.int32), graph.ints(equation.params["axes"]), keepdims=0)
    return graph.cast(reduced, np.bool_)


@lowers("argmax", "argmin")
def _arg(graph: Graph, equation: Any, x: Value) -> Value:
    kind = "ArgMax" if equation.primitive.name == "argmax" else "ArgMin"
    found = graph.op(kind, x, axis=int(equation.params["axes"][0]), keepdims=0)
    return graph.cast(found, equation.params["index_dtype"])


@lowers("top_k")
def _top_k(graph: Graph, equation: Any, x: Value) -> list[Value]:
    rank = equation.invars[0].aval.ndim
    axis = int(equation.params.get("axis", rank - 1))
    values, indices = graph.op("TopK", x, graph.ints([int(equation.params["k"])]), outputs=2, axis=axis)
    return [values, graph.cast(indices, equation.outvars[1].aval.dtype)]


@lowers("cumsum")
def _cumsum(graph: Graph, equation: Any, x: Value) -> Value:
    axis = graph.constant(int(equation.params["axis"]), np.int64)
    return graph.op("CumSum", x, axis, reverse=int(equation.params["reverse"]))


@lowers("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _window(graph: Graph, equation: Any, x: Value) -> Value:
    """Pooling: the axes with a window become the last ones, the others the two leading ones that ONNX wants."""
    params, shape = equation.params, equation.invars[0].aval.shape
    window, strides = params["window_dimensions"], params["window_strides"]
    padding, dilation = params["padding"], params["window_dilation"]
    rank = len(shape)
    if any(n != 1 for n in params["base_dilation"]):
        raise ConfigError("a window over spread elements cannot be written to ONNX")
    pooled = [i for i in range(rank) if (window[i], strides[i], tuple(padding[i])) != (1, 1, (0, 0))]
    if not pooled:
        return graph.op("Identity", x)
    if len(pooled) > 3:
        raise ConfigError(f"a window over {len(pooled)} axes cannot be written to ONNX", why="it pools over three")
    kept = [i for i in range(rank) if i not in pooled]
    order = [*kept, *pooled]
    x = graph.transpose(x, order)
    if len(kept) != 2:
        spatial = graph.op("Shape", x, start=len(kept))
        x = graph.op("Reshape", x, graph.op("Concat", graph.ints([-1, 1]), spatial, axis=0))
    shape_of: dict[str, Any] = {
        "kernel_shape": [int(window[i]) for i in pooled],
        "strides": [int(strides[i]) for i in pooled],
        "pads": [*(int(padding[i][0]) for i in pooled), *(int(padding[i][1]) for i in pooled)],
    }
    x = _pooled(graph, equation.primitive.name, x, shape_of, [int(dilation[i]) for i in pooled], equation)
    if len(kept) != 2:
        x = graph.reshape(x, [equation.outvars[0].aval.shape[i] for i in order])
    return graph.transpose(x, [order.index(i) for i in range(rank)])


def _pooled(graph: Graph, primitive: str, x: Value, shape: dict[str, Any], dilation: list[int], equation: Any) -> Value:
    if primitive == "reduce_window_max":
        return graph.op("MaxPool", x, **shape, dilations=dilation)
    if primitive == "reduce_window_min":
        return graph.op("Neg", graph.op("MaxPool", graph.op("Neg", x), **shape, dilations=dilation))
    if any(n != 1 for n in dilation):
        raise ConfigError("a sum over a spread window cannot be written to ONNX")
    size = graph.constant(math.prod(shape["kernel_shape"]), equation.invars[0].aval.dtype)
    return graph.op("Mul", graph.op("AveragePool", x, **shape, count_include_pad=1), size)
