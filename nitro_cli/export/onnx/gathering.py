"""Lookups: JAX's gather, which embeddings, `x[:, 0]` and slices of arrays of unknown batch size become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import Graph, Value, fixed
from nitro_cli.export.onnx.lowerings import lowers

__all__: list[str] = []


@dataclass(frozen=True)
class _Plan:
    """A gather's shapes.

    Attributes:
        shape: the operand's.
        sizes: the slice's.
        mapped: operand axes that the index names, in its order.
        collapsed: operand axes that the result lacks.
        offsets: result axes that hold the slice.
        loose: number of axes of the index without its last.
    """

    shape: tuple[Any, ...]
    sizes: tuple[Any, ...]
    mapped: tuple[int, ...]
    collapsed: tuple[int, ...]
    offsets: tuple[int, ...]
    loose: int

    @property
    def kept(self) -> list[int]:
        """Operand axes that the result has, in order."""
        return [axis for axis in range(len(self.shape)) if axis not in self.collapsed]

    def order(self, position: dict[int, int], loose: Sequence[int]) -> list[int]:
        """The transpose that brings operand axes, now at `position`, and the index's, now at `loose`, into place."""
        waiting = iter(loose)
        rank = len(self.kept) + self.loose
        kept = self.kept
        return [position[kept[self.offsets.index(i)]] if i in self.offsets else next(waiting) for i in range(rank)]


@lowers("gather")
def _gather(graph: Graph, equation: Any, x: Value, indices: Value) -> Value:
    plan = _planned(equation)
    last = [graph.dimension(plan.shape[axis] - plan.sizes[axis]) for axis in plan.mapped]
    asked = graph.cast(indices, np.int64)
    most = last[0] if len(last) == 1 else graph.op("Concat", *last, axis=0)
    index = graph.op("Min", graph.op("Max", asked, graph.ints([0])), most)
    if plan.loose == 0:
        found = _one_slice(graph, plan, x, index)
    elif len(plan.mapped) == 1 and plan.collapsed == plan.mapped:
        found = _one_axis(graph, plan, x, index)
    else:
        found = _many_axes(graph, plan, x, index)
    held = equation.invars[0].aval.dtype
    if "FILL" not in str(equation.params["mode"]) or np.dtype(held).kind != "f":
        return found
    good = graph.cast(graph.op("Equal", asked, index), np.int32)
    good = graph.cast(graph.op("ReduceMin", good, graph.ints([plan.loose]), keepdims=0), np.bool_)
    if plan.loose and plan.offsets:
        good = graph.op("Unsqueeze", good, graph.ints(plan.offsets))
    return graph.op("Where", good, found, graph.constant(np.nan, held))


def _planned(equation: Any) -> _Plan:
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, mapped = equation.invars[0].aval.shape, tuple(numbers.start_index_map)
    if getattr(numbers, "operand_batching_dims", None) or not mapped:
        raise ConfigError(
            "this gather cannot be written to ONNX", why="it looks up row by row, as jnp.take_along_axis does"
        )
    whole = all(axis in mapped or bool(size == shape[axis]) for axis, size in enumerate(sizes))
    if not whole or not all(fixed(sizes[axis]) for axis in mapped):
        raise ConfigError("this gather cannot be written to ONNX", why="it takes a part that depends on the batch")
    loose = equation.invars[1].aval.ndim - 1
    return _Plan(shape, tuple(sizes), mapped, tuple(numbers.collapsed_slice_dims), tuple(numbers.offset_dims), loose)


def _one_slice(graph: Graph, plan: _Plan, x: Value, index: Value) -> Value:
    """A single slice, whose start the index is."""
    sizes = graph.ints([int(plan.sizes[axis]) for axis in plan.mapped])
    found = graph.slice(x, index, graph.op("Add", index, sizes), plan.mapped, [1] * len(plan.mapped))
    return graph.op("Squeeze", found, graph.ints(plan.collapsed)) if plan.collapsed else found


def _one_axis(graph: Graph, plan: _Plan, x: Value, index: Value) -> Value:
    """Whole rows of one axis, as of an embedding's table."""
    (axis,) = plan.mapped
    found = graph.op("Gather", x, graph.op("Squeeze", index, graph.ints([plan.loose])), axis=axis)
    position = {kept: kept if kept < axis else kept - 1 + plan.loose for kept in plan.kept}
    return graph.transpose(found, plan.order(position, range(axis, axis + plan.loose)))


def _many_axes(graph: Graph, plan: _Plan, x: Value, index: Value) -> Value:
    """Everything else, element by element over the axes that the index names."""
    wide = [axis for axis in plan.kept if axis in plan.mapped]
    rest = [axis for axis in plan.kept if axis not in plan.mapped]
    grid = np.zeros((*(int(plan.sizes[axis]) for axis in wide), len(plan.mapped)), np.int64)
    for i, axis in enumerate(wide):
        line = np.arange(int(plan.sizes[axis])).reshape([-1 if j == i else 1 for j in range(len(wide))])
        grid[..., plan.mapped.index(axis)] += line
    if wide:
        index = graph.op("Unsqueeze", index, graph.ints(range(plan.loose, plan.loose + len(wide))))
        index = graph.op("Add", index, graph.constant(grid))
    found = graph.op("GatherND", graph.transpose(x, [*plan.mapped, *rest]), index)
    position = {axis: plan.loose + i for i, axis in enumerate([*wide, *rest])}
    return graph.transpose(found, plan.order(position, range(plan.loose)))
