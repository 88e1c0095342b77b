"""What is checked of an export before anything is written: batch sizes, declared outputs, the function itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.checkpoints import encode_value
from nitro_cli.errors import ConfigError, HookError, warn
from nitro_cli.export.agreement import check_agreement
from nitro_cli.export.contract import WireContract, inputs_named
from nitro_cli.export.load import BundleError, check_client
from nitro_cli.export.program import Served, output_leaves
from nitro_cli.export.spec import ExportSpec
from nitro_cli.text import exception_text

if TYPE_CHECKING:
    from nitro_cli.run import Handle

__all__ = [
    "Expected",
    "batch_sizes_of",
    "check_against_predict",
    "checked",
    "expected_outputs",
    "plain_json",
    "predicted",
    "try_postprocess",
]

Expected = dict[int, tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]]
"""Per batch size the wire inputs and the outputs by name."""


def batch_sizes_of(batch_sizes: Iterable[int]) -> tuple[int, ...]:
    """The sizes asked for, each once and in order; 1 when none is.

    Raises:
        ConfigError: one of them is no whole number from 1 up.
    """
    sizes = tuple(dict.fromkeys(batch_sizes))
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"batch size {size!r}", why="batch sizes are whole numbers from 1 up")
    return sizes or (1,)


def checked(served: Served) -> Served:
    """The function with its outputs' dtypes and shapes from the trace, after checking those that were declared.

    Raises:
        ConfigError: an output is not what was declared, or its first axis is not the batch; an input has a dtype that
            JAX would change; the function fails on what `export_inputs` declares.
    """
    contract = served.contract
    _check_widths(contract)
    two, three = (_traced(served, batch) for batch in (2, 3))
    outputs = []
    for spec in contract.outputs:
        small, large = two[spec.name], three[spec.name]
        if not small.shape or small.shape[0] != 2 or large.shape[0] != 3 or small.shape[1:] != large.shape[1:]:
            raise ConfigError(
                f"output {spec.name!r} has shape {small.shape} for two samples and {large.shape} for three",
                why="the first axis of an output is the batch",
            )
        if spec.dtype is not None and spec.dtype != small.dtype:
            raise ConfigError(f"output {spec.name!r} is declared {spec.dtype}, the program gives {small.dtype}")
        if spec.shape is not None and spec.shape[1:] != small.shape[1:]:
            raise ConfigError(
                f"output {spec.name!r} is declared {('batch', *spec.shape[1:])}, the program gives "
                f"{('batch', *small.shape[1:])}"
            )
        outputs.append(ExportSpec(spec.name, small.dtype, (1, *small.shape[1:]), spec.source))
    return replace(served, contract=replace(contract, outputs=tuple(outputs)))


def _check_widths(contract: WireContract) -> None:
    for spec in contract.inputs:
        kept = jax.dtypes.canonicalize_dtype(spec.dtype)
        if kept != spec.dtype:
            raise ConfigError(
                f"input {spec.name!r} is declared {spec.dtype}, and JAX would make it {kept}",
                why="64-bit types are off",
                fix=f"declare it {kept}, or set JAX_ENABLE_X64=1",
            )


def _traced(served: Served, batch: int) -> dict[str, Any]:
    wire = [jax.ShapeDtypeStruct(spec.sized(batch), spec.dtype) for spec in served.contract.inputs]
    weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in served.weights.items()}
    with inputs_named(served.contract):
        return dict(jax.eval_shape(served.function, weights, *wire))


def expected_outputs(served: Served, sizes: Iterable[int]) -> Expected:
    """Made-up wire inputs per batch size and what the function, run by hand, makes of them."""
    expected: Expected = {}
    for size in sorted(set(sizes)):
        wire = served.example(size)
        # As numpy arrays the hooks would compute by numpy's rules of promotion.
        weights, given = jax.tree.map(jnp.asarray, (served.weights, wire))
        expected[size] = (wire, {name: np.asarray(v) for name, v in served.function(weights, *given).items()})
    return expected


def predicted(nitro: Handle, served: Served, wire: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """What `predict` gives for wire inputs, by output name, without fixing the size that the handle predicts in."""
    batch = {name: np.asarray(value) for name, value in served.prepare(*wire).items()}
    own = served.head(jax.tree.map(jnp.asarray, nitro.evaluator.predict(batch, nitro.run_state, widen=False)))
    specs = served.contract.outputs
    sent = {spec.name: value for spec, value in zip(served.contract.inputs, wire, strict=True)}
    leaves = output_leaves(own, specs)
    return {spec.name: np.asarray(leaves[spec.leaf] if spec.leaf in leaves else sent[spec.leaf]) for spec in specs}


def check_against_predict(nitro: Handle, served: Served, expected: Expected) -> None:
    """Raise unless the exported function gives what the handle's `predict` gives for the same inputs.

    Raises:
        IntegrityError: an output differs by more than 1e-5.
    """
    wire, found = expected[min(expected)]
    check_agreement(found, predicted(nitro, served, wire), "the exported function, run by hand, against predict")


def try_postprocess(contract: WireContract, expected: Expected) -> None:
    """Run the experiment's postprocess once on the expected outputs and compare with what is declared.

    Raises:
        HookError: it fails, or gives other outputs than `export_client_outputs` declares.

    Warns:
        NitroWarning: it imports something that is not installed here, so that it could not be tried.
    """
    if contract.postprocess is None:
        return
    size = max(expected)
    where = "export_postprocess"
    try:
        scope: dict[str, Any] = {"__name__": "postprocess"}
        exec(compile(contract.postprocess, "postprocess.py", "exec"), scope)
        returned = scope["postprocess"](dict(expected[size][1]))
    except ImportError as error:
        warn(f"the postprocess could not be tried here: {error}")
        return
    except Exception as error:
        raise HookError(
            f"the postprocess fails on the program's outputs: {exception_text(error)}",
            where=where,
            fix="it gets a mapping of the output names to numpy arrays and returns one",
        ) from error
    specs = [spec.as_json() for spec in contract.client_outputs or contract.outputs]
    try:
        check_client(returned, specs, size)
    except BundleError as error:
        raise HookError(
            str(error), where=where, fix="declare what a client receives in export_client_outputs"
        ) from None


def plain_json(value: Any) -> Any:
    """The entries as JSON gives them back, so that what is written is what is verified.

    A number that is not finite, which JSON does not know, is written as in a checkpoint: `{"$float": "nan"}`.
    """
    return json.loads(json.dumps(value, default=str), parse_constant=lambda name: encode_value(float(name), "number"))
