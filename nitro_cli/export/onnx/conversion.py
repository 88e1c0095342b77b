"""From a traced function to an ONNX model: equation by equation, calls inlined, loops of known length unrolled."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import export

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import OPSET, Graph, Value, tensor_type
from nitro_cli.export.onnx.lowerings import LOWERINGS
from nitro_cli.export.program import Served
from nitro_cli.programs import LONGEST, JaxprWalk

__all__ = ["onnx_model"]

_LOWERINGS_IN = ("elementwise", "shaping", "gathering", "reducing", "contracting")


def onnx_model(served: Served, metadata: Mapping[str, str]) -> Any:
    """The ONNX model of an exported function: weights by their dotted names, the batch axis dynamic.

    Raises:
        ConfigError: the function cannot be traced at an unknown batch size, or uses a primitive that has no lowering.
    """
    from onnx import helper, numpy_helper

    for name in _LOWERINGS_IN:
        importlib.import_module(f"nitro_cli.export.onnx.{name}")
    contract = served.contract
    traced = _traced(served)
    graph = Graph(contract.inputs[0].name)
    names = [*sorted(served.weights), *(spec.name for spec in contract.inputs)]
    graph.constants.update(served.weights)
    found = _Lowering(graph).walk(traced, names)
    outputs = sorted(contract.outputs, key=lambda spec: spec.name)
    for spec, value in zip(outputs, found, strict=True):
        if value == spec.name:
            continue  # an input sent back under its own name
        if spec.name in names:
            raise ConfigError(
                f"output {spec.name!r} has the name of an input that it is not",
                why="the tensors of an ONNX file share one space of names",
                fix="name the output otherwise",
            )
        graph.nodes.append(helper.make_node("Identity", [value], [spec.name]))
    used = {name for node in graph.nodes for name in node.input}
    made = helper.make_graph(
        graph.nodes,
        "served",
        [helper.make_tensor_value_info(s.name, tensor_type(s.dtype), list(s.sized("batch"))) for s in contract.inputs],
        [helper.make_tensor_value_info(s.name, tensor_type(s.dtype), list(s.sized("batch"))) for s in contract.outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in graph.constants.items() if name in used],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="nitro", ir_version=9)
    helper.set_model_props(model, dict(metadata))
    return model


def _traced(served: Served) -> Any:
    (batch,) = export.symbolic_shape("batch")
    weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in served.weights.items()}
    wire = [jax.ShapeDtypeStruct(spec.sized(batch), spec.dtype) for spec in served.contract.inputs]
    try:
        return jax.make_jaxpr(served.function)(weights, *wire)
    except Exception as error:
        if "symbolic" not in str(error).lower() and "Inconclusive" not in type(error).__name__:
            raise
        raise ConfigError(
            "the function cannot be traced at an unknown batch size",
            where="onnx",
            why=str(error).splitlines()[0],
            fix="write shapes by x.shape[0], without branching on them; or export a bundle, which can hold fixed sizes",
        ) from error


class _Lowering(JaxprWalk[Value]):
    """Writes operations into a graph; a value is the name of a tensor."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def constant(self, array: Any) -> Value:
        return self.graph.constant(np.asarray(array))

    def is_operation(self, equation: Any) -> bool:
        return equation.primitive.name in LOWERINGS

    def operation(self, equation: Any, inputs: list[Value]) -> list[Value]:
        primitive = equation.primitive.name
        if primitive in LOWERINGS:
            return LOWERINGS[primitive](self.graph, equation, inputs)
        if primitive == "scan" and isinstance(equation.params["length"], int):
            raise ConfigError(
                f"a loop of {equation.params['length']} turns cannot be written to ONNX",
                why=f"loops of 1 to {LONGEST} turns are unrolled",
            )
        raise ConfigError(
            f"the primitive {primitive} cannot be written to ONNX",
            where="forward or export_preprocess",
            why="no lowering is known for it",
            fix="write that part with other operations, or export a bundle or a savedmodel",
        )

    def row(self, stacked: Value, index: int) -> Value:
        return self.graph.op("Gather", stacked, self.graph.constant(index, np.int64), axis=0)

    def stack(self, rows: list[Value]) -> Value:
        rows = [self.graph.op("Unsqueeze", value, self.graph.ints([0])) for value in rows]
        return self.graph.op("Concat", *rows, axis=0)
