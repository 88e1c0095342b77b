"""How a run changes its parameters: schedules bound over its horizon, and the optimizer built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.distributed import host_array, process_count
from nitro_cli.errors import ConfigError, HookError, warn
from nitro_cli.experiment import Experiment, of_training
from nitro_cli.optim import Hyper, Optimizer, bind, bind_manual, horizon_jump
from nitro_cli.programs import BoundModel
from nitro_cli.run.devices import Placement
from nitro_cli.run.model_plan import BuiltModel
from nitro_cli.run.plan import DataPlan, HookPlan, ModelPlan, OptimPlan, Settings
from nitro_cli.run.position import Position
from nitro_cli.run.restore import Source
from nitro_cli.text import path_text

__all__ = ["bind_schedules", "build_optimizer", "horizon", "manual_optimizers"]

_UNKNOWN_HORIZON = 1024
"""Optimizer steps of a handle with neither a train split nor a record: the first value is all that is read."""


def horizon(e: Experiment, data: DataPlan, source: Source | None, position: Position) -> int:
    """The optimizer steps of the whole run; on a resume those taken, and those of the epochs that remain.

    Without a train split those of the run that the weights come from; 0 without one.
    """
    train = data.splits.get("train")
    if train is None:
        return (source.record.meta.total_steps or 0) if source is not None else 0
    per_epoch = train.batches // e.accum
    if source is None or source.kind != "resume":
        return e.max_epochs * per_epoch
    # Counted from the record: an earlier resume may have changed how many steps an epoch has.
    rest_of_epoch = 0 if position.closed else (train.batches - position.batch) // e.accum
    return position.step + rest_of_epoch + max(e.max_epochs - position.epoch, 0) * per_epoch


def bind_schedules(
    settings: Settings,
    data: DataPlan,
    hooks: HookPlan,
    model: BuiltModel,
    source: Source | None,
    position: Position,
    total_steps: int,
) -> Hyper:
    """Bind every schedule over the horizon, with the counters of the record that is gone on from.

    Raises:
        ScheduleError, ConfigError: a schedule binds to nothing, or has nothing to go by.

    Warns:
        NitroWarning: the horizon is another than the record's, and where a curve jumps.
    """
    e = settings.experiment
    words: dict[str, Any] = {
        "schedules": settings.resolved.schedules,
        "origin": settings.resolved.schedules_origin,
        "total_steps": total_steps or _UNKNOWN_HORIZON,
        "trains": "train" in data.splits,
        "monitor": settings.monitor,
    }
    if hooks.manual:
        state = jax.eval_shape(partial(manual_optimizers, settings, model.plan), model.params, model.state)
        bound: Callable[..., Hyper] = partial(bind_manual, e, state)
    else:
        bound = partial(bind, e, model.plan.layout)
    hyper = bound(**words)
    held = None
    # A handle that only answers reads the schedules of the run that its weights are of.
    if source is not None and (source.kind == "resume" or "train" not in data.splits):
        held = source.record.meta.rules.schedules
    if held is not None:
        hyper = hyper.continued(held)
    resumed = source.resumed if source is not None else None
    if resumed is not None and "train" in data.splits and resumed.total_steps != total_steps:
        before = replace(bound(**{**words, "total_steps": resumed.total_steps}), plateaus=hyper.plateaus)
        # The whole curve is computed anew: say where it jumps.
        for sentence in horizon_jump(before, hyper, position.step):
            warn(f"another horizon than the checkpoint's: {sentence}")
    needs_val = [key for key, counters in hyper.plateaus.items() if not of_training(counters.metric)]
    if needs_val and "train" in data.splits and "val" not in data.splits:
        raise ConfigError("a plateau schedule without a `val` split", fix="return a val split, or drop the plateau")
    return hyper


def build_optimizer(
    e: Experiment, hooks: HookPlan, model: BuiltModel, hyper: Hyper, total_steps: int, placement: Placement
) -> OptimPlan:
    """The optimizer of each group, and what decay pulls its parameters to.

    Raises:
        ConfigError, HookError: `optimizer` or a gradient rule does not fit the parameters.
    """
    if hooks.manual:
        return OptimPlan(hyper, total_steps, w0_source=model.w0_source)
    optimizer = Optimizer(e, model.plan.layout, hyper, supplies_loss=True)
    w0 = model.w0() if optimizer.anchored else None
    if w0 is not None and process_count() > 1:
        w0 = jax.tree.map(host_array, w0)
    anchors = jax.tree.map(np.array, optimizer.anchors(w0))
    return OptimPlan(
        hyper,
        total_steps,
        optimizer=optimizer,
        rule=optimizer.rule,
        anchors=placement.put_parameters(anchors),
        anchor_checksums=optimizer.anchor_checksums(w0),
        w0_source=model.w0_source,
    )


def manual_optimizers(settings: Settings, model: ModelPlan, params: Any, state: Any) -> Any:
    """The optimizer states of manual mode, as the experiment's `setup_optimizers` makes them.

    Raises:
        HookError: a leaf of theirs is no array.
    """
    bound = BoundModel(model.adapted, train=True, key=model.key)
    made = settings.hooks.call(settings.experiment, "setup_optimizers", bound, params, state)
    for path, leaf in jax.tree_util.tree_flatten_with_path(made)[0]:
        try:
            jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError):
            raise HookError(
                f"`setup_optimizers` returned a {type(leaf).__name__}" + (f" at {path_text(path)}" if path else ""),
                why="optimizer states are trees of arrays",
                fix="return what init gives: optax.adam(1e-3).init(params)",
            ) from None
    return made
