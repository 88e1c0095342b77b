"""What the training program is made from, the state that it replaces, and how it reads its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from nitro_cli.errors import HookError
from nitro_cli.experiment import Experiment, Routing
from nitro_cli.optim import BLOCK, Hyper, Optimizer, PerturbRule
from nitro_cli.programs.array_layout import ArrayLayout
from nitro_cli.programs.models import AdaptedModel, BoundModel
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.readback import ReadbackLayout

__all__ = ["Row", "StepNames", "StepPlan", "TrainState", "device_values", "forward", "row_of"]

_PREPARE = 0x9E3779B9
"""What the key of a micro-batch is folded with for `prepare`: no count of a model's calls gets there."""

Row = jax.Array | Sequence[jax.Array]
"""The hyperparameters of a step, by column."""


class TrainState(NamedTuple):
    """What a step replaces.

    Attributes:
        params, state: the model's parameters and layer state.
        opt: optimizer state, by group.
        ema: exponential moving average of the parameters, or None.
        step: optimizer steps taken, int32[].
        position: micro-batches taken in this epoch, int32[].
        stopped: whether a non-finite loss or gradient ended the run, bool[]; once True no step changes anything.
        failed: steps in a row that were not finite, int32[]; None where the first ends the run, or none does.
    """

    params: PyTree
    state: PyTree
    opt: PyTree
    ema: PyTree
    step: jax.Array
    position: jax.Array
    stopped: jax.Array
    failed: jax.Array | None = None


@dataclass
class StepNames:
    """What is known of a step's program once it was traced.

    Attributes:
        layout: where its numbers stand in the readback.
        forward_twice: the loss terms whose denominators took a forward of their own.
    """

    layout: ReadbackLayout = field(default_factory=ReadbackLayout)
    forward_twice: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepPlan:
    """Everything the program is made from.

    Attributes:
        experiment: the experiment; its Host fields are out of reach of the traced code.
        routing: which batch fields each hook takes.
        model: the adapted model.
        optimizer: the groups' rules; None in manual mode.
        hyper: where each traced hyperparameter stands in a row.
        rule: the perturbing gradient rule, or None for the plain gradient.
        accum: micro-batches per optimizer step.
        incomplete: whether the last step of an epoch may lack micro-batches: their place is taken by padding.
        scan: fold the micro-batches in a loop inside the program instead of writing them out.
        patience: how many steps in a row whose loss or gradient is not finite end the run; 0 takes them as others.
        branches: an update is left out by a branch, which costs nothing on a CPU; elsewhere a branch would wait for the
            device, and both states are computed and one chosen.
        ema: keep an average of the parameters.
        manual: the experiment's own `train_step` does the whole step.
        outputs_to_host: also return the micro-batches' outputs, stacked (train metrics computed on the host).
        layout: how arrays lie on several devices; None on one.
        shares_wishes: several processes train: `inputs["wishes"]` holds what each asks for, and the largest comes back
            behind `finite`, so that all learn of it at the same step.
    """

    experiment: Experiment
    routing: Routing
    model: AdaptedModel
    optimizer: Optimizer | None
    hyper: Hyper
    rule: PerturbRule | None = None
    accum: int = 1
    incomplete: bool = False
    scan: bool = False
    patience: int = 1
    branches: bool = False
    ema: bool = False
    manual: bool = False
    outputs_to_host: bool = False
    layout: ArrayLayout | None = None
    shares_wishes: bool = False
    names: StepNames = field(default_factory=StepNames)


def device_values(hyper: Hyper, device: Mapping[str, jax.Array], step: jax.Array) -> dict[str, jax.Array]:
    """The Device fields of a step: of those that a schedule can drive their value at it, the others as they are.

    Args:
        hyper: says which those are.
        device: the fields by name, those with a value for every step of the block.
        step: optimizer steps taken before, int32[].
    """
    at = jax.lax.rem(step, np.int32(BLOCK))
    stepped = {name: jax.lax.dynamic_index_in_dim(device[name], at, keepdims=False) for name in hyper.device_fields}
    return {**device, **stepped}


def row_of(rows: jax.Array, step: jax.Array) -> tuple[jax.Array, ...]:
    """The hyperparameters of a step, one by one: cut out by plain slices, which cost a start less than indexing."""
    row = jax.lax.dynamic_index_in_dim(rows, jax.lax.rem(step, np.int32(BLOCK)), keepdims=False)
    return tuple(jax.lax.index_in_dim(row, column, keepdims=False) for column in range(rows.shape[1]))


def forward(
    view: Experiment, model: BoundModel, params: PyTree, state: PyTree, routing: Routing, batch: Mapping[str, Any]
) -> tuple[PyTree, PyTree]:
    """Call the `prepare` hook, where there is one, and the `forward` hook, which must return `(outputs, state)`."""
    if routing.table.has("prepare"):
        batch = {**batch, **_prepared(view, model, routing, batch)}
    returned = routing.call(view, "forward", model, params, state, batch=batch)
    if not isinstance(returned, tuple) or len(returned) != 2:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise HookError(
            f"`forward` returned {type(returned).__name__}{size}",
            why="it must return the pair (outputs, new_state)",
            fix="return model(params, state, ...), or (outputs, state)",
        )
    return returned


def _prepared(view: Experiment, model: BoundModel, routing: Routing, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the `prepare` hook changes of the fields that `forward` takes."""
    inputs = {name: batch[name] for name in routing.fields_for("forward") if name in batch}
    key = None if model.key is None else jax.random.fold_in(model.key, _PREPARE)
    changed = routing.table.call(view, "prepare", inputs, model.train, key)
    if not isinstance(changed, Mapping) or not changed.keys() <= inputs.keys():
        given = f"{sorted(changed)}" if isinstance(changed, Mapping) else type(changed).__name__
        raise HookError(
            f"`prepare` returned {given}",
            why=f"it changes fields that `forward` takes: {', '.join(inputs)}",
            fix="return a mapping of those that it changes to their new arrays",
        )
    return changed
