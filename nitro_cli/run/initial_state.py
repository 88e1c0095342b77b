"""The first train state of a handle: fresh, or as a record holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.errors import ConfigError, IncompatibleError
from nitro_cli.optim import ema_init
from nitro_cli.programs import TrainState, in_place
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.model_plan import BuiltModel
from nitro_cli.run.optim_plan import manual_optimizers
from nitro_cli.run.plan import Plan
from nitro_cli.run.position import Position
from nitro_cli.run.restore import Source, checksum_problem, restore_tree
from nitro_cli.run.start import Start

__all__ = ["initial_train_state"]


def initial_train_state(
    plan: Plan, model: BuiltModel, start: Start, position: Position, compiler: Compiler
) -> TrainState:
    """Build the state that training starts from, in one program when fresh.

    A handle without a `train` split gets no optimizer state.

    Raises:
        IncompatibleError: the record's optimizer, average or decay anchors do not fit.
        ConfigError: `restore_optimizer` without a record to take it from.
    """
    source, placement = start.source, plan.placement
    params, state = model.params, model.state
    if "train" not in plan.splits:
        nothing: Any = np.zeros((), np.int32)
        ema = _recorded_ema(plan, params, source)
        return TrainState(params, state, {}, ema, nothing, nothing, np.zeros((), bool))  # type: ignore[arg-type]
    make_opt, keeps_ema = _optimizer_init(plan), plan.experiment.ema is not None
    row = plan.optim.hyper.table(1, 1)[0]

    def fresh(params: Any, state: Any, row: jax.Array) -> TrainState:
        zero = jnp.zeros((), jnp.int32)
        ema = ema_init(params) if keeps_ema else None
        made = TrainState(params, state, make_opt(params, state, row), ema, zero, zero, jnp.zeros((), bool))
        return made if placement.layout is None else in_place(made, placement.layout)

    def held_optimizer(source: Source) -> Any:
        return restore_tree("opt", make_opt, (params, state, row), source, placement, "optimizer states")

    if source is None or source.kind != "resume":
        program = compiler.compile("init", fresh, (params, state, row))
        train: TrainState = program(params, state, row)
        if start.restore_optimizer:
            train = train._replace(opt=held_optimizer(_single_record(source)))
        return train
    _check_anchors(plan, source)
    opt = held_optimizer(source)
    ema = restore_tree("ema", ema_init, (params,), source, placement, "EMA") if keeps_ema else None
    counters = (np.asarray(position.step, np.int32), np.asarray(position.batch, np.int32), np.zeros((), bool))
    return TrainState(params, state, opt, ema, *placement.put(counters))


def _optimizer_init(plan: Plan) -> Callable[[Any, Any, Any], Any]:
    optimizer = plan.optim.optimizer
    if optimizer is not None:
        return lambda params, state, row: optimizer.init(params, row)
    return lambda params, state, row: manual_optimizers(plan.settings, plan.model, params, state)


def _single_record(source: Source | None) -> Source:
    if source is None or source.kind != "weights" or source.averaged_from is not None:
        raise ConfigError(
            "restore_optimizer without a checkpoint to take the optimizer from",
            why="only a single record holds an optimizer state",
            fix="give weights= a checkpoint path or a (run, checkpoint) pair",
        )
    return source


def _recorded_ema(plan: Plan, params: Any, source: Source | None) -> Any:
    """For evaluation: the record's EMA, unless `eval_weights` says raw."""
    if source is None or source.kind == "handle" or plan.experiment.eval_weights == "raw":
        return None
    if not any(name.startswith("ema/") for name in source.record.arrays):
        return None
    return restore_tree("ema", ema_init, (params,), source, plan.placement, "EMA")


def _check_anchors(plan: Plan, source: Source) -> None:
    held = source.record.meta.anchors
    problem = checksum_problem(held, plan.optim.anchor_checksums)
    if problem is not None:
        raise IncompatibleError(
            f"the decay anchor of group {problem} is not the one the run was trained with",
            where=source.text,
            why="the decay pulls toward other values than before, so the run would not continue but change",
            fix="build the same initial weights (same seed, same build_model), or start a new run with weights=",
        )
