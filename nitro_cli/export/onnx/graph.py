"""An ONNX graph under construction: nodes, constants, and shapes that may depend on the batch size."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError

__all__ = ["OPSET", "Graph", "Value", "fixed"]

OPSET = 18
Value = str
"""The name of a tensor of the graph."""

_SIZES = (11, 17, 29)


class Graph:
    """Collects nodes and constants; every tensor has a name of its own.

    Args:
        batch: name of a graph input whose first axis is the batch.
    """

    def __init__(self, batch: Value) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._batch = batch
        self._count = 0
        self._known: dict[Any, Value] = {}

    def fresh(self, hint: str = "t") -> Value:
        """An unused name."""
        self._count += 1
        return f"/{hint}_{self._count}"  # no weight and no tensor of the wire is named like this

    def op(self, kind: str, *inputs: Value, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return its output, or the list of its outputs when there are several."""
        from onnx import helper

        names = [self.fresh(kind) for _ in range(outputs)]
        kept = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(kind, list(inputs), names, **kept))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = None) -> Value:
        """A constant tensor; equal small ones are shared."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 64 else None
        if key is None or key not in self._known:
            name = self.fresh("c")
            self.constants[name] = array
            if key is None:
                return name
            self._known[key] = name
        return self._known[key]

    def ints(self, values: Iterable[int]) -> Value:
        """A constant int64 vector."""
        return self.constant(list(values), np.int64)

    def cast(self, x: Value, dtype: Any) -> Value:
        """Convert to another dtype."""
        return self.op("Cast", x, to=tensor_type(dtype))

    def dimension(self, size: Any) -> Value:
        """A dimension as int64[1]; one that depends on the batch size is computed from it when the graph runs."""
        if fixed(size):
            return self.ints([int(size)])
        slope, start = _linear(size)
        if "batch" not in self._known:
            self._known["batch"] = self.op("Shape", self._batch, start=0, end=1)
        value = self._known["batch"]
        if slope != 1:
            value = self.op("Mul", value, self.ints([slope]))
        return value if start == 0 else self.op("Add", value, self.ints([start]))

    def shape(self, sizes: Sequence[Any]) -> Value:
        """A shape as an int64 vector."""
        if all(fixed(size) for size in sizes):
            return self.ints([int(size) for size in sizes])
        return self.op("Concat", *(self.dimension(size) for size in sizes), axis=0)

    def reshape(self, x: Value, sizes: Sequence[Any]) -> Value:
        """`x` in another shape; a single unknown dimension is left for the runtime to infer."""
        open_axes = [i for i, size in enumerate(sizes) if not fixed(size)]
        if len(open_axes) == 1 and all(size != 0 for size in sizes if fixed(size)):
            return self.op("Reshape", x, self.ints([-1 if not fixed(size) else int(size) for size in sizes]))
        return self.op("Reshape", x, self.shape(sizes))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Axes in another order; nothing when it is the same."""
        return x if list(order) == sorted(order) else self.op("Transpose", x, perm=list(order))

    def slice(self, x: Value, starts: Value, ends: Value, axes: Sequence[int], steps: Sequence[int]) -> Value:
        """Slices of `x` along axes, bounds as int64 vectors."""
        return self.op("Slice", x, starts, ends, self.ints(axes), self.ints(steps))

    def dilate(self, x: Value, axis: int, factor: int, size: Any, rank: int) -> Value:
        """Put `factor - 1` zeros between neighbours along an axis of the given size."""
        if factor == 1:
            return x
        spread = self.op("Unsqueeze", x, self.ints([axis + 1]))
        pads = [0] * (2 * (rank + 1))
        pads[rank + 1 + axis + 1] = factor - 1
        padded = self.op("Pad", spread, self.ints(pads))
        sizes = self.op("Concat", self.op("Shape", x, start=0, end=axis), self.ints([-1]),
                        self.op("Shape", x, start=axis + 1), axis=0)  # fmt: skip
        merged = self.op("Reshape", padded, sizes)
        end = self.dimension((size - 1) * factor + 1)
        return self.slice(merged, self.ints([0]), end, [axis], [1])


def tensor_type(dtype: Any) -> int:
    """The number ONNX has for a dtype."""
    from onnx import helper

    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"ONNX has no dtype {np.dtype(dtype)}") from error


def fixed(size: Any) -> bool:
    """Whether a dimension is a number."""
    return isinstance(size, int | np.integer)


def _linear(size: Any) -> tuple[int, int]:
    """Slope and start of a dimension that grows with the batch size.

    The text of a symbolic dimension is an expression in JAX's public grammar of symbolic shapes.
    """
    words = {"mod": operator.mod, "floordiv": operator.floordiv, "max": max, "min": min, "__builtins__": {}}
    code = compile(str(size), "<dimension>", "eval")
    first, second, third = (int(eval(code, {**words, "batch": n})) for n in _SIZES)
    slope = (second - first) // (_SIZES[1] - _SIZES[0])
    start = first - slope * _SIZES[0]
    if slope * _SIZES[1] + start != second or slope * _SIZES[2] + start != third:
        raise ConfigError(
            f"a dimension of {size} cannot be written to ONNX", why="it is no multiple of the batch size plus a number"
        )
    return slope, start
