"""Setup in its written order: from a configuration and the words of one call to a plan and where the run stands.

Each step returns a value of its own, which nothing changes afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from nitro_cli.data import Split
from nitro_cli.distributed import WatchedDist, agree, process_count
from nitro_cli.errors import DataError, warn
from nitro_cli.experiment import (
    HookTable,
    check_configuration,
    graphconst_fingerprint,
    monitor_of,
)
from nitro_cli.metrics import History
from nitro_cli.optim import decay_rows
from nitro_cli.programs import EvalPlan
from nitro_cli.registry import Resolved
from nitro_cli.run.batch_checks import with_batch_checks
from nitro_cli.run.callbacks import own_callbacks
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.components import asked_components
from nitro_cli.run.data_plan import build_sources, plan_data, plan_hooks
from nitro_cli.run.deriving import with_derived
from nitro_cli.run.device_fields import DeviceFields
from nitro_cli.run.devices import Placement
from nitro_cli.run.initial_state import initial_train_state
from nitro_cli.run.judged_metrics import check_judged_metrics
from nitro_cli.run.kept_files import with_kept_files, with_made_files
from nitro_cli.run.model_plan import BuiltModel, build_model, place_device_fields
from nitro_cli.run.optim_plan import bind_schedules, build_optimizer, horizon
from nitro_cli.run.output_shapes import check_evaluated_outputs
from nitro_cli.run.part_values import with_filled_parts, with_restored_parts
from nitro_cli.run.plan import DataPlan, OptimPlan, Plan, Settings
from nitro_cli.run.position import Position
from nitro_cli.run.progress import Progress
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import Source, position_of
from nitro_cli.run.resumed_data import check_resumed_data
from nitro_cli.run.rules import Rules
from nitro_cli.run.run_rules import check_rules
from nitro_cli.run.start import Start
from nitro_cli.run.state import RunState
from nitro_cli.run.step_plan import trains_resident

__all__ = ["set_up"]


def set_up(resolved: Resolved, start: Start, compiler: Compiler) -> tuple[Plan, RunState]:
    """Decide everything that a run is made from, and build the state that it begins with.

    Each failure comes before anything expensive that it makes useless.

    Args:
        resolved: the experiment with this call's knobs, and its schedules.
        start: the other words of the call.
        compiler: of the handle.

    Returns:
        The plan, which holds no array of the source any more, and the state.
    """
    report, source = SetupReport(), start.source
    with Progress.phase("checking the configuration"):
        settings = _checked_settings(resolved, start)
    _seed_host(settings.seed)
    serving = isinstance(start.data, Mapping) and not start.data
    settings = with_restored_parts(settings, source, serving=serving)
    settings = with_kept_files(settings, source)
    with Progress.phase("building data"):
        dist = WatchedDist(jax.process_index(), process_count())
        sources = build_sources(settings, start.data, dist)
    settings = with_made_files(settings, sources)
    settings = with_derived(settings, sources, source, serving=serving, report=report)
    placement = Placement.choose(settings.experiment.n_devs, settings.experiment.sharding)
    with Progress.phase("looking at the data"):
        data = plan_data(settings, sources, placement, source, dist)
        settings = with_filled_parts(settings, sources, data.splits, report)
        hooks = plan_hooks(settings, data)
    e = settings.experiment
    arrays = place_device_fields(settings, placement)
    if source is not None and source.kind == "resume" and data.splits:
        with Progress.phase("looking at the data"):
            check_resumed_data(source, data.splits, accum=e.accum, seed=settings.seed)
    if "train" in data.splits:
        check_rules(settings, data.splits, start.restore_best)
    position = position_of(source)
    with Progress.phase("building the model"):
        model = build_model(settings, start, placement, arrays, compiler, report)
    _check_padding(data, model)
    _agree(settings, source, position, model, placement)
    total_steps = horizon(e, data, source, position)
    if hooks.routing is not None:
        with Progress.phase("tracing the outputs"):
            evaluated = EvalPlan(e, hooks.routing, model.plan.adapted, placement.layout)
            check_evaluated_outputs(evaluated, data.splits, model.params, model.state, arrays)
            data = with_batch_checks(settings, evaluated, data, (model.params, model.state, arrays), report)
    with Progress.phase("binding schedules"):
        hyper = bind_schedules(settings, data, hooks, model, source, position, total_steps)
    trains = "train" in data.splits
    components = asked_components(settings.hooks, e) if trains else {}
    rules = Rules(e, settings.monitor, hyper, components, own_callbacks(e) if trains else ())
    loads = rules.planned(source) if trains and source is not None and source.kind == "resume" else None
    device = DeviceFields(e, rules, placement, arrays)
    device.check_scheduled(total_steps)
    with Progress.phase("building the optimizer"):
        optim = (
            build_optimizer(e, hooks, model, hyper, total_steps, placement)
            if trains
            else OptimPlan(hyper, total_steps, w0_source=model.w0_source)
        )
    kept = None if source is None else source.without_arrays()
    plan = Plan(settings, data, hooks, model.plan, optim, placement, report, kept)
    check_judged_metrics(plan, model.params, model.state, device.at(position.read_step))
    _report(plan, model.params)
    history = _started_history(settings, source)
    train = initial_train_state(plan, model, start, position, compiler)
    rules.begin(source, loads, history)
    return plan, RunState(train, position, device, rules, history)


def _checked_settings(resolved: Resolved, start: Start) -> Settings:
    e = resolved.experiment
    check_configuration(e)
    resumed = start.source.resumed if start.source is not None else None
    seed = e.seed if resumed is None else resumed.seed
    if seed != e.seed:
        warn(f"the seed is the checkpoint's, {seed}, not {e.seed}: a resume continues the same random sequences")
    return Settings(start.given, resolved, start.run_dir, start.import_path, HookTable(e), monitor_of(e), seed)


def _started_history(settings: Settings, source: Source | None) -> History:
    """The rows of the record that a resume goes on from; else none."""
    history = History(title=settings.resolved.class_name, monitor=settings.selection)
    if source is not None and source.kind == "resume":
        for row in History.from_json_rows(source.record.meta.history, origin=f"{source.text}: history"):
            history.append(row)
    return history


def _seed_host(seed: int) -> None:
    """Hooks may use the global generators of Python and numpy: a seed must fix those too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _agree(
    settings: Settings, source: Source | None, position: Position, model: BuiltModel, placement: Placement
) -> None:
    """Several processes: refuse to train where they would not train the same."""
    if process_count() == 1:
        return
    whole = placement.layout is None or not placement.layout.fsdp
    agree(
        {
            "the seed": settings.seed,
            "the experiment's GraphConst fields": graphconst_fingerprint(settings.experiment),
            "the checkpoint to start from": source.text if source is not None else None,
            "the step": position.step,
            "the initial parameters": jax.tree.leaves(model.params) if whole else [],
        }
    )


def _check_padding(data: DataPlan, model: BuiltModel) -> None:
    """Refuse padding in training that a layer would see: what it keeps of a batch would be of padding too."""
    train = data.splits.get("train")
    if train is not None and train.padding is not None and jax.tree.leaves(model.state):
        raise DataError(
            f"the train split ends in {_short_end(train)}, and the model has layer state",
            where="split `train`",
            why="padding would enter the layer state",
            fix="drop it (drop_last=True), and choose an accum that divides the number of batches",
        )


def _short_end(train: Split) -> str:
    assert train.padding is not None
    if train.padding.rest:
        return f"a batch of {train.padding.rest} of {train.batch_size} samples"
    return f"a step of fewer micro-batches, {train.padding.full} batches in all"


def _report(plan: Plan, params: Any) -> None:
    e, hyper, placement, report = plan.experiment, plan.optim.hyper, plan.placement, plan.report
    report.add("hooks", [{"hook": name, "of": owner} for name, owner in plan.settings.hooks.owners().items()])
    resident = trains_resident(plan)
    report.add("data", [_split_row(split, placement, resident) for split in plan.splits.values()])
    report.add("bindings", [asdict(row) | {"bound": ", ".join(row.bound)} for row in hyper.bindings])
    report.add("parameter groups", [asdict(row) for row in hyper.groups])
    report.add("weight decay", decay_rows(plan.model.layout, hyper))
    run: dict[str, Any] = {"seed": plan.settings.seed, "max_epochs": e.max_epochs, "accum": e.accum}
    run |= {"steps": plan.optim.total_steps, "devices": placement.count}
    if process_count() > 1:
        run["processes"] = process_count()
    run["backend"] = placement.devices[0].platform
    if placement.count > 1 or e.sharding != "replicated":
        run["parameters"] = placement.described(params)
    report.add("run", [run])


def _split_row(split: Split, placement: Placement, trains_resident: bool) -> dict[str, Any]:
    prefetch = split.prefetch
    follows = prefetch.follows and placement.on_host
    row: dict[str, Any] = {"split": split.name, "batches": split.batches, "batch size": split.batch_size}
    if trains_resident and split.name == "train":
        return row | {"fed": "resident on the device" if placement.count == 1 else "resident, whole on each device"}
    row |= {
        "fed": prefetch.path,
        "workers": f"up to {prefetch.workers}, where they pay" if follows else prefetch.workers,
        "staged": prefetch.device_batches,
        "ordered": prefetch.ordered,
    }
    notes = [prefetch.note] if prefetch.note else []
    if prefetch.skips_on_reentry:
        notes.append("a resume inside an epoch reads the batches before it again")
    return row | {"note": "; ".join(notes)} if notes else row
