"""Primitives that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import Graph, Value
from nitro_cli.export.onnx.lowerings import LOWERINGS, lowers

__all__: list[str] = []

_SAME = {
    "neg": "Neg", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "sqrt": "Sqrt", "logistic": "Sigmoid",
    "erf": "Erf", "abs": "Abs", "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max",
    "min": "Min", "pow": "Pow", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual", "copy": "Identity", "copy_p": "Identity", "stop_gradient": "Identity",
    "reduce_precision": "Identity", "sharding_constraint": "Identity",
}  # fmt: skip
_LOGICAL = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}


def _same(kind: str) -> Any:
    def lowering(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
        return [graph.op(kind, *inputs)]

    return lowering


LOWERINGS.update({primitive: _same(kind) for primitive, kind in _SAME.items()})


def _dtype(equation: Any, i: int = 0) -> np.dtype[Any]:
    return np.dtype(equation.invars[i].aval.dtype)


@lowers("ne")
def _ne(graph: Graph, equation: Any, a: Value, b: Value) -> Value:
    return graph.op("Not", graph.op("Equal", a, b))


@lowers("and", "or", "xor")
def _logical(graph: Graph, equation: Any, a: Value, b: Value) -> Value:
    boolean, bitwise = _LOGICAL[equation.primitive.name]
    return graph.op(boolean if _dtype(equation) == np.bool_ else bitwise, a, b)


@lowers("not")
def _not(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Not" if _dtype(equation) == np.bool_ else "BitwiseNot", x)


@lowers("rem")
def _rem(graph: Graph, equation: Any, a: Value, b: Value) -> Value:
    return graph.op("Mod", a, b, fmod=1)


@lowers("rsqrt")
def _rsqrt(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Reciprocal", graph.op("Sqrt", x))


@lowers("square")
def _square(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Mul", x, x)


@lowers("exp2")
def _exp2(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Pow", graph.constant(2, _dtype(equation)), x)


@lowers("log1p")
def _log1p(graph: Graph, equation: Any, x: Value) -> Value:
    """`2 atanh(x / (x + 2))`, which keeps small x exact where `log(1 + x)` rounds it away."""
    two = graph.constant(2, _dtype(equation))
    small = graph.op("Mul", two, graph.op("Atanh", graph.op("Div", x, graph.op("Add", x, two))))
    large = graph.op("Log", graph.op("Add", x, graph.constant(1, _dtype(equation))))
    near = graph.op("Less", graph.op("Abs", x), graph.constant(0.5, _dtype(equation)))
    return graph.op("Where", near, small, large)


@lowers("expm1")
def _expm1(graph: Graph, equation: Any, x: Value) -> Value:
    """`2 t / (1 - t)` with `t = tanh(x / 2)`, which keeps small x exact where `exp(x) - 1` rounds it away."""
    one, two = graph.constant(1, _dtype(equation)), graph.constant(2, _dtype(equation))
    t = graph.op("Tanh", graph.op("Div", x, two))
    small = graph.op("Div", graph.op("Mul", two, t), graph.op("Sub", one, t))
    near = graph.op("Less", graph.op("Abs", x), graph.constant(0.5, _dtype(equation)))
    return graph.op("Where", near, small, graph.op("Sub", graph.op("Exp", x), one))


@lowers("erfc")
def _erfc(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Sub", graph.constant(1, _dtype(equation)), graph.op("Erf", x))


@lowers("cbrt")
def _cbrt(graph: Graph, equation: Any, x: Value) -> Value:
    third = graph.constant(1 / 3, _dtype(equation))
    return graph.op("Mul", graph.op("Sign", x), graph.op("Pow", graph.op("Abs", x), third))


@lowers("round")
def _round(graph: Graph, equation: Any, x: Value) -> Value:
    if int(equation.params["rounding_method"]) == 1:
        return graph.op("Round", x)
    half = graph.constant(0.5, _dtype(equation))
    return graph.op("Mul", graph.op("Sign", x), graph.op("Floor", graph.op("Add", graph.op("Abs", x), half)))


@lowers("integer_pow")
def _integer_pow(graph: Graph, equation: Any, x: Value) -> Value:
    y = int(equation.params["y"])
    power = graph.op("Pow", x, graph.constant(abs(y), _dtype(equation)))
    return power if y >= 0 else graph.op("Div", graph.constant(1, _dtype(equation)), power)


@lowers("is_finite")
def _is_finite(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.op("Not", graph.op("Or", graph.op("IsNaN", x), graph.op("IsInf", x)))


@lowers("convert_element_type")
def _convert(graph: Graph, equation: Any, x: Value) -> Value:
    return graph.cast(x, equation.params["new_dtype"])


@lowers("select_n")
def _select(graph: Graph, equation: Any, which: Value, *cases: Value) -> Value:
    if _dtype(equation) == np.bool_:
        return graph.op("Where", which, cases[1], cases[0])
    chosen = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        chosen = graph.op("Where", graph.op("Equal", which, graph.constant(i, _dtype(equation))), cases[i], chosen)
    return chosen


@lowers("clamp")
def _clamp(graph: Graph, equation: Any, low: Value, x: Value, high: Value) -> Value:
    return graph.op("Min", graph.op("Max", x, low), high)


@lowers("optimization_barrier")
def _barrier(graph: Graph, equation: Any, *inputs: Value) -> list[Value]:
    return list(inputs)


@lowers("dim_as_value")
def _dim_as_value(graph: Graph, equation: Any) -> Value:
    size = graph.reshape(graph.dimension(equation.params["dim"]), ())
    return graph.cast(size, equation.outvars[0].aval.dtype)


@lowers("iota")
def _iota(graph: Graph, equation: Any, *sizes: Value) -> Value:
    out, axis = equation.outvars[0].aval, int(equation.params["dimension"])
    if not all(isinstance(size, int) for size in out.shape):
        end = graph.reshape(graph.dimension(out.shape[axis]), ())
        line = graph.op("Range", graph.constant(0, np.int64), end, graph.constant(1, np.int64))
        column = graph.reshape(line, [n if i == axis else 1 for i, n in enumerate(out.shape)])
        return graph.cast(graph.op("Expand", column, graph.shape(out.shape)), out.dtype)
    if np.dtype(out.dtype).kind == "V":
        raise ConfigError(f"ONNX has no dtype {out.dtype}")
    line = np.arange(out.shape[axis]).astype(out.dtype)
    return graph.constant(np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(out.ndim)]), out.shape))
