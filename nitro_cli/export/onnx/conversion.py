"""From a traced function to an ONNX model: equation by equation, calls inlined, loops of known length unrolled."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend.core import Literal

from nitro_cli.errors import ConfigError
from nitro_cli.export.onnx.graph import OPSET, Graph, Value, tensor_type
from nitro_cli.export.onnx.lowerings import LOWERINGS
from nitro_cli.export.program import Served

__all__ = ["onnx_model"]

_LOWERINGS_IN = ("elementwise", "shaping", "gathering", "reducing", "contracting")
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_LONGEST = 512
_LOOPS = {"while", "cond", "scan"}


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
    found = _lowered(graph, traced, names)
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


def _lowered(graph: Graph, closed: Any, inputs: Sequence[Value]) -> list[Value]:
    """Lower a closed jaxpr and return the names of its outputs."""
    jaxpr = getattr(closed, "jaxpr", closed)
    names: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, value in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True):
        names[variable] = graph.constant(np.asarray(value))

    def read(atom: Any) -> Value:
        if isinstance(atom, Literal):
            return graph.constant(np.asarray(atom.val, np.dtype(getattr(atom.aval, "dtype", None))))
        return names[atom]

    for equation in _needed(jaxpr):
        outputs = _equation(graph, equation, [read(atom) for atom in equation.invars])
        names.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on; random keys that evaluation makes and drops are not among them."""
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            wanted.update(atom for atom in equation.invars if not isinstance(atom, Literal))
            kept.append(equation)
    return kept[::-1]


def _equation(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
    primitive = equation.primitive.name
    if primitive in LOWERINGS:
        return LOWERINGS[primitive](graph, equation, inputs)
    if primitive == "scan" and isinstance(equation.params["length"], int):
        return _unrolled(graph, equation.params, inputs)
    body = next((equation.params[key] for key in _BODIES if key in equation.params), None)
    if body is not None and primitive not in _LOOPS:
        return _lowered(graph, body, inputs)
    raise ConfigError(
        f"the primitive {primitive} cannot be written to ONNX",
        where="forward or export_preprocess",
        why="no lowering is known for it",
        fix="write that part with other operations, or export a bundle or a savedmodel",
    )


def _unrolled(graph: Graph, params: Mapping[str, Any], inputs: list[Value]) -> list[Value]:
    length, consts, carries = params["length"], params["num_consts"], params["num_carry"]
    if length > _LONGEST:
        raise ConfigError(
            f"a loop of {length} turns cannot be written to ONNX", why=f"loops are unrolled up to {_LONGEST} turns"
        )
    fixed, carry, xs = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
    turns: list[list[Value]] = [[] for _ in range(length)]
    for i in reversed(range(length)) if params["reverse"] else range(length):
        at = graph.constant(i, np.int64)
        found = _lowered(graph, params["jaxpr"], [*fixed, *carry, *(graph.op("Gather", x, at, axis=0) for x in xs)])
        carry, turns[i] = found[:carries], found[carries:]
    stacked = []
    for column in zip(*turns, strict=True):
        rows = [graph.op("Unsqueeze", value, graph.ints([0])) for value in column]
        stacked.append(graph.op("Concat", *rows, axis=0))
    return [*carry, *stacked]
