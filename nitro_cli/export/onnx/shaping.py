"""Primitives that move elements: reshapes, transposes, slices, gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import Graph, Value, fixed
from nitro_cli.export.onnx.lowerings import lowers

__all__: list[str] = []

_END = np.iinfo(np.int64).max


@lowers("broadcast_in_dim")
def _broadcast(graph: Graph, equation: Any, x: Value, *sizes: Value) -> Value:
    out, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    held = equation.invars[0].aval.shape
    spread = [held[axes.index(i)] if i in axes else 1 for i in range(len(out))]
    x = x if tuple(spread) == tuple(held) else graph.reshape(x, spread)
    return x if tuple(spread) == tuple(out) else graph.op("Expand", x, graph.shape(out))


@lowers("reshape")
def _reshape(graph: Graph, equation: Any, x: Value, *sizes: Value) -> Value:
    if equation.params.get("dimensions") is not None:
        raise ConfigError("a reshape with an order of its own cannot be written to ONNX")
    return graph.reshape(x, equation.params["new_sizes"])


@lowers("squeeze")
def _squeeze(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Squeeze", x, graph.ints(equation.params["dimensions"]))


@lowers("expand_dims")
def _expand_dims(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Unsqueeze", x, graph.ints(equation.params["dimensions"]))


@lowers("transpose")
def _transpose(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.transpose(x, equation.params["permutation"])


@lowers("concatenate")
def _concatenate(graph: Graph, equation: Any, *parts: Value) -> Value:
    return graph.op("Concat", *parts, axis=int(equation.params["dimension"]))


@lowers("split")
def _split(graph: Graph, equation: Any, x: Value) -> list[Value]:
    sizes = graph.shape(equation.params["sizes"])
    count = len(equation.params["sizes"])
    found = graph.op("Split", x, sizes, outputs=count, axis=int(equation.params["axis"]))
    return [found] if count == 1 else list(found)


@lowers("slice")
def _slice(graph: Graph, equation: Any, x: Value) -> Value:
    held = equation.invars[0].aval.shape
    starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
    steps = equation.params["strides"] or (1,) * len(held)
    changed = [i for i in range(len(held)) if (starts[i], steps[i]) != (0, 1) or ends[i] is not held[i]]
    changed = [i for i in changed if not (fixed(ends[i]) and ends[i] == held[i] and (starts[i], steps[i]) == (0, 1))]
    if not changed:
        return x
    first, last = graph.shape([starts[i] for i in changed]), graph.shape([ends[i] for i in changed])
    return graph.slice(x, first, last, changed, [int(steps[i]) for i in changed])


@lowers("dynamic_slice")
def _dynamic_slice(graph: Graph, equation: Any, x: Value, *starts: Value) -> Value:
    held, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    axes = [i for i in range(len(held)) if not (fixed(sizes[i]) and fixed(held[i]) and sizes[i] == held[i])]
    axes = [i for i in axes if fixed(sizes[i]) or sizes[i] != held[i]]
    for axis in axes:
        start = graph.reshape(graph.cast(starts[axis], np.int64), (1,))
        start = graph.op("Max", start, graph.ints([0]))
        start = graph.op("Min", start, graph.dimension(held[axis] - sizes[axis]))
        x = graph.slice(x, start, graph.op("Add", start, graph.dimension(sizes[axis])), [axis], [1])
    return x


@lowers("rev")
def _rev(graph: Graph, equation: Any, x: Value) -> Value:
    axes = list(equation.params["dimensions"])
    starts, ends = graph.ints([-1] * len(axes)), graph.ints([-_END] * len(axes))
    return graph.slice(x, starts, ends, axes, [-1] * len(axes))


@lowers("pad")
def _pad(graph: Graph, equation: Any, x: Value, value: Value) -> Value:
    config = equation.params["padding_config"]
    if any(inner for _, _, inner in config):
        raise ConfigError("padding between elements cannot be written to ONNX")
    return graph.op("Pad", x, graph.ints([*(low for low, _, _ in config), *(high for _, high, _ in config)]), value)
