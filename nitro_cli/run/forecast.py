"""What training would do: everything is resolved, built and compiled, no step is taken and no run is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import Retention, check_disk, disk_need, record_bytes, without_quarantine
from nitro_cli.distributed import process_count, watched
from nitro_cli.experiment import Checkpointer, Experiment
from nitro_cli.metrics import check_scalar
from nitro_cli.programs import CacheStats, Program, cache_stats
from nitro_cli.registry import Resolved
from nitro_cli.run.description import record_leaves
from nitro_cli.run.evaluation import Evaluator
from nitro_cli.run.handle import Handle
from nitro_cli.run.judged_metrics import judged_metrics
from nitro_cli.run.plan import Plan
from nitro_cli.run.report import SetupReport
from nitro_cli.run.state import RunState, eval_params
from nitro_cli.run.stepping import Stepper
from nitro_cli.tracking import open_logger

__all__ = ["DiskNeed", "DryRun", "ProgramUse", "dry_run"]


@dataclass(frozen=True)
class ProgramUse:
    """The programs of one name: how many XLA compiled now, and how many were taken from a cache.

    Attributes:
        name: `init` (parameters, optimizer state), `train`, `eval`, `metrics`, `eval loss`.
        compiled: compiled now; in the persistent cache from now on, unless they call back into Python.
        from_disk: taken from the persistent cache.
        from_memory: compiled before in this process.
        seconds: compiling and loading.
        flops: floating-point operations of one call; None for `init` and where the backend does not say.
        peak_bytes: the most device memory during a call, likewise.
        callback: whether it calls back into Python, and so is compiled by every process.
    """

    name: str
    compiled: int
    from_disk: int
    from_memory: int
    seconds: float
    flops: float | None = None
    peak_bytes: int | None = None
    callback: bool = False


@dataclass(frozen=True)
class DiskNeed:
    """What checkpoints will take.

    Attributes:
        place: the run directory.
        bytes_per_checkpoint: of one.
        checkpoints: the most that are on disk at once, the one being written and a resume point included; None where
            the rule has no bound, or is the experiment's own.
        bytes: of all those.
        free: of the file system.
    """

    place: Path
    bytes_per_checkpoint: int
    checkpoints: int | None
    bytes: int | None
    free: int


@dataclass(frozen=True)
class DryRun:
    """What `dry_run` found.

    Attributes:
        resolved: the configuration as training would use it, derived values included.
        report: what setup decided, with what compiling decided.
        parameters, parameter_bytes: of the model.
        state_bytes: of all that a step replaces: parameters, layer state, optimizer state, EMA.
        step: optimizer steps already taken, by the checkpoint that training would go on from.
        total_steps, steps_per_epoch: optimizer steps.
        flops_per_step: of one optimizer step on one device; what a loop inside the program repeats is counted once.
        peak_bytes: predicted peak of memory on the first device; None where the backend does not say.
        programs: those that training needs up to its first validation.
        disk: what checkpoints will take; None without a checkpointer.
    """

    resolved: Resolved
    report: SetupReport
    parameters: int
    parameter_bytes: int
    state_bytes: int
    step: int
    total_steps: int
    steps_per_epoch: int
    flops_per_step: float | None
    peak_bytes: int | None
    programs: tuple[ProgramUse, ...]
    disk: DiskNeed | None

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        plain = {
            name: value for name, value in vars(self).items() if name not in ("resolved", "report", "programs", "disk")
        }
        disk = None if self.disk is None else asdict(self.disk)
        programs = [asdict(program) for program in self.programs]
        return {**plain, "programs": programs, "disk": disk, "report": self.report.as_json()}


def dry_run(e: Experiment | Resolved, **keywords: Any) -> DryRun:
    """Resolve, build and compile what `train(e, **keywords)` would, and say what it comes to.

    The programs of the first step and of validation are compiled, and so are in the program cache afterwards; the
    validation programs also take one batch. Nothing else is written: no run, no lock, no log.

    Args:
        e: the experiment.
        **keywords: the keywords of `Nitro`.

    Raises:
        NitroError: what `train` would raise up to its first step.
    """
    before = cache_stats()
    with without_quarantine():
        nitro = Handle(e, **keywords)
    try:
        nitro.check_trainable()
        plan, run = nitro.plan, nitro.run_state
        # Opening a logger writes nothing, and misses what is not installed.
        open_logger(plan.experiment.logger, nitro.run_dir / "dry-run" / "metrics.jsonl")
        disk = _disk_need(plan, run)
        with watched():
            stepper = Stepper(plan, nitro.compiler, run.position.steps_per_dispatch)
            train = stepper.first_program(run)
            _try_validation(plan, run, nitro.evaluator)
    finally:
        nitro.release()
    leaves = jax.tree.leaves(nitro.params)
    return DryRun(
        resolved=nitro.resolved,
        report=plan.report,
        parameters=sum(int(np.prod(leaf.shape)) for leaf in leaves),
        parameter_bytes=sum(leaf.nbytes for leaf in leaves),
        state_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(run.train)),
        step=nitro.step,
        total_steps=plan.optim.total_steps,
        steps_per_epoch=plan.splits["train"].batches // plan.experiment.accum,
        flops_per_step=train.cost.flops,
        peak_bytes=_peak_bytes(plan, run, train, stepper.inputs, nitro.programs.get("eval")),
        programs=_uses(before, cache_stats(), nitro.programs),
        disk=disk,
    )


def _uses(before: CacheStats, after: CacheStats, programs: Mapping[str, Program]) -> tuple[ProgramUse, ...]:
    uses = []
    for name, now in after.by_name.items():
        then = before.by_name.get(name, type(now)())
        counts = (now.misses - then.misses, now.disk_hits - then.disk_hits, now.hits - then.hits)
        if not any(counts):
            continue
        # Two small programs are called `init`: what they cost is no figure of a run.
        program = programs.get(name) if name != "init" else None
        cost = {} if program is None else {"flops": program.cost.flops, "peak_bytes": program.cost.peak_bytes}
        callback = program is not None and program.has_callback
        uses.append(ProgramUse(name, *counts, now.seconds - then.seconds, callback=callback, **cost))  # type: ignore[arg-type]
    return tuple(uses)


def _peak_bytes(
    plan: Plan, run: RunState, train: Program, inputs: dict[str, Any], forward: Program | None
) -> int | None:
    """The most that any program needs, beside what is on the device while it runs and is not among its arguments."""
    if train.cost.peak_bytes is None:
        return None
    split = plan.splits["train"]
    staged = 0
    if "arrays" not in inputs:
        batch = sum(v.nbytes for k, v in split.example.items() if k in plan.hooks.routed.device_fields)
        staged = split.prefetch.device_batches * batch // plan.placement.count
    held = _on_first_device((run.train, inputs))
    needs = [train.cost.peak_bytes + staged]
    arguments = _on_first_device((eval_params(plan.experiment, run.train), run.train.state))
    if forward is not None and forward.cost.peak_bytes is not None:
        needs.append(forward.cost.peak_bytes + held - arguments)
    return max(needs)


def _on_first_device(tree: Any) -> int:
    """Bytes of a tree's arrays on the first device of this process; host arrays will be there too."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shards = getattr(leaf, "addressable_shards", None)
        total += shards[0].data.nbytes if shards else getattr(leaf, "nbytes", 0)
    return total


def _disk_need(plan: Plan, run: RunState) -> DiskNeed | None:
    """What retention will need.

    Raises:
        StorageError: the disk is too small, as at the start of a run.
    """
    e, run_dir = plan.experiment, plan.settings.run_dir
    if e.checkpointer is None:
        return None
    each = record_bytes(record_leaves(run.train, plan.settings.derived))
    count = need = None
    if isinstance(e.checkpointer, Checkpointer):
        retention = Retention.of(e.checkpointer, *(plan.settings.selection or (None, None)))
        check_disk(run_dir, retention, each, e.max_epochs)
        count, need = retention.capacity(e.max_epochs), disk_need(retention, each, e.max_epochs)
    place = run_dir.absolute()
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    return DiskNeed(run_dir, each, count, need, shutil.disk_usage(place).free)


def _try_validation(plan: Plan, run: RunState, evaluator: Evaluator) -> None:
    """Take the first batch of the `val` split through what validation does; nothing is kept of it.

    What an `evaluate_split` reports shows when it runs. With several processes, each of which holds a part of the
    split, the first whole pass is what shows a mistake.

    Args:
        plan, run: of the handle.
        evaluator: of the same.

    Raises:
        MetricError: a metric that something goes by is not reported; and whatever `metrics` raises.
    """
    if "val" not in plan.splits or process_count() > 1 or plan.settings.hooks.has("evaluate_split"):
        return
    found = evaluator.try_first_batch("val", run)
    if found is not None:
        for what, metric in judged_metrics(plan):
            check_scalar(found.get(metric), f"metric {metric!r} of {what}", found)
