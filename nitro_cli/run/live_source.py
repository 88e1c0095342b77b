"""A live handle in the place of a checkpoint: its weights as they are, or the run that it wrote."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from nitro_cli.checkpoints import CheckpointRecord, RecordedClass, RecordMeta, RuleStates
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, IncompatibleError
from nitro_cli.experiment import own_store, selection_of
from nitro_cli.run.plan import Plan
from nitro_cli.run.restore import Source, load_source
from nitro_cli.run.snapshot import flatten
from nitro_cli.run.state import RunState

__all__ = ["named_source"]


class Live(Protocol):
    """What is asked of a handle that stands for its weights or its run."""

    @property
    def plan(self) -> Plan:
        """Its plan."""

    @property
    def run_state(self) -> RunState:
        """Where it stands."""

    @property
    def run_id(self) -> str | None:
        """The run that it wrote."""


def named_source(weights: Any, resume: Any, e: Any, run_dir: Any, *, load_ema: bool) -> Source | None:
    """Find and read what `weights` or `resume` of a call names, live handles included; None when neither is given.

    Args:
        weights, resume: the words of `Nitro`; a pair may name the run by the live handle that wrote it.
        e: the experiment, whose checkpointer says what best means.
        run_dir: where runs lie.
        load_ema: take a live handle's EMA, or average the EMAs.

    Raises:
        NitroError: as `load_source`; and `resume` is a live handle, or one that wrote no run is to give a checkpoint.
    """
    what = "resume" if weights is None else "weights"
    spec = resume if weights is None else weights
    both = weights is not None and resume not in (None, False)
    selection, store = selection_of(e), own_store(e.checkpointer)
    if not both and _is_live(spec):
        return _from_memory(spec, load_ema, what)
    if not both and isinstance(spec, tuple | list) and len(spec) == 2 and _is_live(spec[0]):
        # The run that the handle wrote, where and by what it wrote it.
        handle: Live = spec[0]
        settings = handle.plan.settings
        pair = (_run_of(handle, what), spec[1])
        weights, resume = (None, pair) if what == "resume" else (pair, None)
        run_dir, selection = settings.run_dir, settings.selection
        store = own_store(settings.experiment.checkpointer)
    return load_source(weights, resume, root=run_dir, selection=selection, store=store, load_ema=load_ema)


def _is_live(value: Any) -> bool:
    return hasattr(value, "run_state") and hasattr(value, "plan")


def _run_of(handle: Live, what: str) -> str:
    if handle.run_id is None:
        raise CheckpointNotFoundError(
            f"the handle given in {what} has written no run",
            where=str(handle.plan.settings.run_dir),
            why="it was not trained",
            fix="train it first; weights=handle takes what it holds in memory",
        )
    return str(handle.run_id)


def _from_memory(handle: Live, load_ema: bool, what: str) -> Source:
    if what == "resume":
        raise ConfigError(
            "resume was given a live handle",
            why="what is in memory is no checkpoint",
            fix='resume=(handle, "latest") continues its run',
        )
    plan, (train, at, _, rules, _) = handle.plan, handle.run_state
    params = train.ema if load_ema else train.params
    if params is None:
        raise IncompatibleError("load_ema, but the handle given as weights has no EMA", fix="drop load_ema")
    params = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, train.params)
    arrays = {**flatten("params", params), **flatten("state", train.state)}
    name = plan.settings.resolved.class_name
    meta = RecordMeta(
        experiment=RecordedClass(name=name),
        epoch=at.epoch,
        step=at.read_step,
        total_steps=plan.optim.total_steps,
        rules=RuleStates(schedules=rules.hyper.state()),
        batch_fields=plan.data.recorded_fields,
    )
    text = f"the live handle of {name} at epoch {at.epoch}, step {at.step}"
    held = plan.settings
    return Source("handle", CheckpointRecord(meta=meta, arrays=arrays), text, derived=held.derived, kept=held.kept)
