"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import Graph, Value
from nitro_cli.export.onnx.lowerings import lowers

__all__: list[str] = []

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@lowers("dot_general")
def _dot(graph: Graph, equation: Any, a: Value, b: Value) -> Value:
    left, right, out = (v.aval for v in (*equation.invars, *equation.outvars))
    if left.dtype != out.dtype:
        a = graph.cast(a, out.dtype)
    if right.dtype != out.dtype:
        b = graph.cast(b, out.dtype)
    (inner_a, inner_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    if tuple(inner_a) == (left.ndim - 1,) and tuple(inner_b) == (0,) and right.ndim == 2 and not batch_a:
        return graph.op("MatMul", a, b)
    letters = iter(_LETTERS)
    names_a = {axis: next(letters) for axis in range(left.ndim)}
    names_b = {
        b_axis: names_a[a_axis] for a_axis, b_axis in zip((*batch_a, *inner_a), (*batch_b, *inner_b), strict=True)
    }
    names_b = {axis: names_b.get(axis) or next(letters) for axis in range(right.ndim)}
    free_a = [axis for axis in range(left.ndim) if axis not in (*batch_a, *inner_a)]
    free_b = [axis for axis in range(right.ndim) if axis not in (*batch_b, *inner_b)]
    result = [*(names_a[i] for i in (*batch_a, *free_a)), *(names_b[i] for i in free_b)]
    sides = ("".join(names[i] for i in range(len(names))) for names in (names_a, names_b))
    return graph.op("Einsum", a, b, equation=f"{','.join(sides)}->{''.join(result)}")


@lowers("conv_general_dilated")
def _conv(graph: Graph, equation: Any, x: Value, kernel: Value) -> Value:
    params, held = equation.params, equation.invars[0].aval
    if params["batch_group_count"] != 1:
        raise ConfigError("a convolution grouped over the batch cannot be written to ONNX")
    numbers = params["dimension_numbers"]
    x = graph.transpose(x, numbers.lhs_spec)
    kernel = graph.transpose(kernel, numbers.rhs_spec)
    for i, factor in enumerate(params["lhs_dilation"]):
        size = held.shape[numbers.lhs_spec[2 + i]]
        x = graph.dilate(x, 2 + i, int(factor), size, held.ndim)
    padding = params["padding"]
    if any(low < 0 or high < 0 for low, high in padding):
        pads = [0, 0, *(int(low) for low, _ in padding), 0, 0, *(int(high) for _, high in padding)]
        x = graph.op("Pad", x, graph.ints(pads))
        padding = [(0, 0)] * len(padding)
    x = graph.op(
        "Conv",
        x,
        kernel,
        strides=[int(n) for n in params["window_strides"]],
        pads=[*(int(low) for low, _ in padding), *(int(high) for _, high in padding)],
        dilations=[int(n) for n in params["rhs_dilation"]],
        group=int(params["feature_group_count"]),
    )
    out = graph.transpose(x, list(np.argsort(numbers.out_spec)))
    wanted = np.dtype(equation.outvars[0].aval.dtype)
    return out if np.dtype(held.dtype) == wanted else graph.cast(out, wanted)
