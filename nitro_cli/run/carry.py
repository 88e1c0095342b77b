"""The first `TrainState` of a handle: fresh, or as a record holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.distributed import host_array
from nitro_cli.errors import ConfigError, IncompatibleError
from nitro_cli.optim import ema_init
from nitro_cli.programs import TrainState, in_place
from nitro_cli.run.restore import Source, checksum_problem, restore_tree
from nitro_cli.run.setup import manual_optimizers
from nitro_cli.run.start import Start

if TYPE_CHECKING:
    from nitro_cli.run.parts import Parts

__all__ = ["initial_carry"]


def initial_carry(parts: Parts, start: Start, compile_named: Any) -> TrainState:
    """Build the state that training starts from, in one program when fresh.

    A handle without a `train` split gets no optimizer state.
    """
    source: Source | None = parts.source
    training = "train" in parts.splits
    if not training:
        nothing = np.zeros((), np.int32)
        ema = _record_ema(parts, source)
        return TrainState(parts.params, parts.state, {}, ema, nothing, nothing, np.zeros((), bool))  # type: ignore[arg-type]
    make_opt = _optimizer_init(parts)
    keeps_ema = parts.experiment.ema is not None

    row = parts.hyper.table(1, 1)[0]

    def fresh(params: Any, state: Any, row: jax.Array) -> TrainState:
        zero = jnp.zeros((), jnp.int32)
        ema = ema_init(params) if keeps_ema else None
        carry = TrainState(params, state, make_opt(params, state, row), ema, zero, zero, jnp.zeros((), bool))
        layout = parts.placement.layout
        return carry if layout is None else in_place(carry, layout)

    resumed = source is not None and source.kind == "resume"
    if not resumed:
        program = compile_named("init", fresh, (parts.params, parts.state, row))
        carry: TrainState = program(parts.params, parts.state, row)
        if start.restore_optimizer:
            carry = carry._replace(opt=_restored_optimizer(parts, start, make_opt))
        return carry
    assert source is not None
    _check_anchors(parts, source)
    opt = restore_tree("opt", make_opt, (parts.params, parts.state, row), source, "optimizer states")
    ema = None
    if keeps_ema:
        ema = restore_tree("ema", ema_init, (parts.params,), source, "EMA")
    step, position = np.asarray(parts.step, np.int32), np.asarray(parts.position, np.int32)
    put, put_parameters = parts.placement.put, parts.placement.put_parameters
    params, state = jax.tree.map(host_array, (parts.params, parts.state))
    params, opt, ema = put_parameters((params, opt, ema))
    return TrainState(params, put(state), opt, ema, *put((step, position, np.zeros((), bool))))


def _optimizer_init(parts: Parts) -> Any:
    if not parts.manual:
        optimizer = parts.optimizer
        assert optimizer is not None
        return lambda params, state, row: optimizer.init(params, row)

    return lambda params, state, row: manual_optimizers(parts, params, state)


def _restored_optimizer(parts: Parts, start: Start, make_opt: Any) -> Any:
    source = start.source
    if source is None or source.kind != "weights" or source.averaged_from is not None:
        raise ConfigError(
            "restore_optimizer without a checkpoint to take the optimizer from",
            why="only a single record holds an optimizer state",
            fix="give weights= a checkpoint path or a (run, checkpoint) pair",
        )
    row = parts.hyper.table(1, 1)[0]
    opt = restore_tree("opt", make_opt, (parts.params, parts.state, row), source, "optimizer states")
    return parts.placement.put_parameters(opt)


def _record_ema(parts: Parts, source: Source | None) -> Any:
    """For evaluation: the record's EMA, unless `eval_weights` says raw."""
    if source is None or source.kind == "handle" or parts.experiment.eval_weights == "raw":
        return None
    if not any(name.startswith("ema/") for name in source.record.arrays):
        return None
    return parts.placement.put_parameters(restore_tree("ema", ema_init, (parts.params,), source, "EMA"))


def _check_anchors(parts: Parts, source: Source) -> None:
    held = source.record.meta.anchors
    problem = checksum_problem(held, parts.anchor_checksums)
    if problem is not None:
        raise IncompatibleError(
            f"the decay anchor of group {problem} is not the one the run was trained with",
            where=source.text,
            why="the decay pulls toward other values than before, so the run would not continue but change",
            fix="build the same initial weights (same seed, same build_model), or start a new run with weights=",
        )
