"""The wire contract that an experiment has without export hooks: its inputs and outputs follow from `forward`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import HookTable
from nitro_cli.export.spec import ExportSpec
from nitro_cli.text import path_text

if TYPE_CHECKING:
    from nitro_cli.run import Handle

__all__ = ["ONE_OUTPUT", "default_inputs", "default_outputs"]

ONE_OUTPUT = "outputs"
"""The name of the output where `forward` returns one array."""


def default_inputs(nitro: Handle) -> tuple[ExportSpec, ...]:
    """The batch's fields that `forward` takes, in the order of its parameters, in the dtypes that the device gets.

    Args:
        nitro: the handle; its batches are known from its data, or from the record of its weights.

    Raises:
        ConfigError: nothing is known of its batches.
        RoutingError: `forward` wants a field that they lack.
    """
    e, fields = nitro.experiment, nitro.plan.data.batch_fields
    if not fields:
        raise ConfigError(
            f"{type(e).__name__} has no export_inputs, and there is no batch to take its inputs from",
            why="the handle was built without data, and its weights come from no training that recorded its batches",
            fix="build the handle with its data, give weights of a trained run, or define export_inputs",
        )
    signature = HookTable(e).fields("forward")
    taken = signature.fields_for(tuple(fields), where="a batch of the data")
    order = [*signature.required, *signature.optional]
    names = sorted(taken, key=lambda name: (order.index(name) if name in order else len(order), name))
    return tuple(
        ExportSpec(name, jax.dtypes.canonicalize_dtype(fields[name].dtype), (1, *fields[name].shape)) for name in names
    )


def default_outputs(outputs: Any, inputs: Sequence[ExportSpec]) -> tuple[ExportSpec, ...]:
    """Every leaf of what `forward` returns, under a name that each backend can write.

    A single array is `outputs`; the leaf `head/logits` is `head_logits`, the first of a tuple `outputs_0`, and what has
    the name of an input `outputs_NAME`.

    Raises:
        ConfigError: there is none, or two would have one name.
    """
    leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
    if len(leaves) == 1 and not isinstance(outputs, Mapping):
        return (ExportSpec(ONE_OUTPUT),)
    wire = {spec.name for spec in inputs}
    specs = []
    for path, _ in leaves:
        leaf = path_text(path)
        name = re.sub(r"\W", "_", leaf, flags=re.ASCII).strip("_") or "0"
        if name in wire or name[0].isdigit():
            name = f"{ONE_OUTPUT}_{name}"
        specs.append(ExportSpec(name, source=None if name == leaf else leaf))
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names) or not names:
        twice = ", ".join(sorted({spec.leaf for spec in specs if names.count(spec.name) > 1}))
        raise ConfigError(
            f"the outputs {twice} would have one name on the wire" if names else "forward returns no array",
            fix="define export_outputs: ExportSpec(name, source=leaf) for each that ships",
        )
    return tuple(specs)
