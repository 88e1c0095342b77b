"""Setup in its written order: from an experiment and the words of one call to the parts of a handle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.data import Split, answer_fork_warnings, inspect_split
from nitro_cli.distributed import WatchedDist, agree, host_array, process_count, shared_split
from nitro_cli.errors import ConfigError, HookError, warn
from nitro_cli.experiment import (
    HookTable,
    check_configuration,
    device_array,
    device_names,
    field_value,
    graphconst_fingerprint,
    host_view,
    monitor_of,
    resolve_routing,
)
from nitro_cli.optim import Hyper, Optimizer, bind, bind_manual, build_layout, decay_rows, horizon_jump
from nitro_cli.programs import BoundModel, initialize
from nitro_cli.registry import Resolved
from nitro_cli.run.decay_reference import decay_reference
from nitro_cli.run.deriving import merge_derived
from nitro_cli.run.devices import Placement
from nitro_cli.run.judged_metrics import check_judged_metrics
from nitro_cli.run.output_shapes import check_evaluated_outputs
from nitro_cli.run.parts import Parts, hook_residency
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import restore_source
from nitro_cli.run.resumed_data import check_resumed_data
from nitro_cli.run.run_rules import check_rules
from nitro_cli.run.start import Start
from nitro_cli.text import path_text

__all__ = ["build_parts", "manual_optimizers"]


_UNKNOWN_HORIZON = 1024
"""Optimizer steps of a handle with neither a train split nor a record: the first value is all that is read."""

Step = Callable[[str], AbstractContextManager[None]]
Compiling = Callable[[str], object]


def build_parts(resolved: Resolved, start: Start, step: Step, compiling: Compiling) -> Parts:
    """Run the setup steps in order; each failure comes before anything expensive that it makes useless.

    Args:
        resolved: the experiment with this run's knobs, and its schedules.
        start: the other words of the call.
        step: names the step in progress.
        compiling: told when the initialisation is about to be compiled.
    """
    with step("checking the configuration"):
        parts = _check_configuration(resolved, start)
    _seed_host(parts.seed)
    with step("building data"):
        _build_data(parts, start)
    merge_derived(parts, serving=start.data is not None and not parts.sources)
    _place_device_fields(parts)
    with step("looking at the data"):
        _inspect(parts)
    if "train" in parts.splits:
        check_rules(parts, start.restore_best)
    with step("building the model"):
        _build_model(parts, start, compiling)
    _set_horizon(parts)
    _agree(parts)
    with step("tracing the outputs"):
        check_evaluated_outputs(parts)
    with step("binding schedules"):
        _bind(parts)
    if "train" in parts.splits:
        with step("building the optimizer"):
            _build_optimizer(parts, start)
    _report(parts)
    return parts


def _check_configuration(resolved: Resolved, start: Start) -> Parts:
    e = resolved.experiment
    check_configuration(e)
    seed = e.seed
    source = start.source
    resumed = source.resumed if source is not None else None
    if resumed is not None:
        held = resumed.seed
        if held != seed:
            warn(f"the seed is the checkpoint's, {held}, not {seed}: a resume continues the same random sequences")
        seed = held
    monitor = monitor_of(e)
    return Parts(resolved=resolved, hooks=HookTable(e), report=SetupReport(), monitor=monitor, seed=seed, source=source)


def _seed_host(seed: int) -> None:
    """Hooks may use the global generators of Python and numpy: a seed must fix those too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _build_data(parts: Parts, start: Start) -> None:
    parts.dist = WatchedDist(jax.process_index(), process_count())
    if start.data is not None:
        built: Any = start.data
    else:
        with answer_fork_warnings("build_data"):
            built = parts.hooks.call(parts.experiment, "build_data", parts.dist)
    if not isinstance(built, Mapping):
        if start.data is not None:
            raise ConfigError(
                f"data is a {type(built).__name__}",
                where="data=",
                fix='give a mapping of split names to sources: {"train": ..., "val": ...}',
            )
        raise HookError(
            f"`build_data` returned {type(built).__name__}",
            fix='return a mapping of split names to sources: {"train": ..., "val": ...}',
        )
    odd = [key for key in built if not isinstance(key, str)]
    if odd:
        refusal, origin = (HookError, "`build_data` returned") if start.data is None else (ConfigError, "`data=` has")
        raise refusal(
            f"{origin} a split named {odd[0]!r}, {type(odd[0]).__name__}",
            why="records and commands call a split by its name, which is text",
            fix='name every split by a string: {"train": ..., "val": ...}',
        )
    parts.sources = dict(built)


def _place_device_fields(parts: Parts) -> None:
    e = parts.experiment
    parts.placement = Placement.choose(e.n_devs, e.sharding)
    # Copies: on the CPU the device would read the user's own arrays, which they may change.
    parts.device = parts.placement.put({name: np.array(device_array(field_value(e, name))) for name in device_names(e)})


def _build_model(parts: Parts, start: Start, compiling: Compiling) -> None:
    e = parts.experiment

    def build(device: Mapping[str, jax.Array], key: jax.Array) -> Any:
        return parts.hooks.call(host_view(e, device), "build_model", key)

    layout = parts.placement.layout
    built = initialize(
        build,
        parts.seed,
        # With several processes each computes the same by itself, from values of its own.
        parts.device if process_count() == 1 else jax.tree.map(np.asarray, parts.device),
        options=start.compile_options,
        on_compile=compiling,
        place=layout.keep if layout is not None and layout.fsdp else None,
    )
    parts.model = built.adapted
    parts.params, parts.state = parts.placement.put_parameters(built.params), parts.placement.put(built.state)
    parts.key = parts.placement.put(built.key)
    parts.report.add(
        "model",
        [{"library": built.adapted.library, "initialised": built.mode, "because": built.reason or ""}],
    )
    fresh = parts.params
    if parts.source is not None:
        restore_source(parts, load_ema=start.load_ema)
    parts.w0 = decay_reference(parts, start, fresh)
    parts.layout = build_layout(e, parts.params)


def _inspect(parts: Parts) -> None:
    """Look at one batch of every split: what is wrong with data or routing shows before a model is built."""
    e = parts.experiment
    parts.residency = hook_residency(parts.hooks, e)
    parts.manual = parts.hooks.manual(e)
    if not parts.sources:
        return
    for name, source in parts.sources.items():
        accum = e.accum if name == "train" else 1
        split = inspect_split(name, source, train=name == "train", accum=accum, seed=parts.seed)
        split = split.checked_for_own_order(parts.seed)
        if process_count() > 1:
            split = shared_split(split, parts.dist)
        parts.placement.check_batch_size(name, split.batch_size)
        parts.splits[name] = split
    probe = parts.splits.get("train") or next(iter(parts.splits.values()))
    traced = tuple(hook for hook in parts.traced_hooks() if _used(parts, hook))
    host = tuple(hook for hook, where in parts.residency.items() if where == "host" and _used(parts, hook))
    parts.routing = resolve_routing(parts.hooks, tuple(probe.fields), traced=traced, host=host)
    for split in parts.splits.values():
        needed = ["forward"] + ["metrics"] * (split.name != "train" and parts.hooks.has("metrics"))
        for hook in needed:
            parts.routing.signatures[hook].fields_for(tuple(split.fields), f"a batch of split {split.name!r}")
        split.check_device_fields(parts.routing.device_fields)
        split.check_device_values(parts.routing.device_fields, parts.seed)
    if parts.source is not None and parts.source.kind == "resume":
        check_resumed_data(parts.source, parts.splits, accum=e.accum, seed=parts.seed)


def _agree(parts: Parts) -> None:
    """Several processes: refuse to train where they would not train the same."""
    if process_count() == 1:
        return
    layout = parts.placement.layout
    whole = layout is None or not layout.fsdp
    agree(
        {
            "the seed": parts.seed,
            "the experiment's GraphConst fields": graphconst_fingerprint(parts.experiment),
            "the checkpoint to start from": parts.source.text if parts.source is not None else None,
            "the step": parts.step,
            "the initial parameters": jax.tree.leaves(parts.params) if whole else [],
        }
    )


def _set_horizon(parts: Parts) -> None:
    """The optimizer steps of the whole run; on a resume those taken, and those of the epochs that remain.

    Without a train split those of the run that the weights come from; 0 without one.
    """
    e, train = parts.experiment, parts.splits.get("train")
    if train is None:
        parts.total_steps = (parts.source.record.meta.total_steps or 0) if parts.source is not None else 0
        return
    per_epoch = train.batches // e.accum
    parts.total_steps = e.max_epochs * per_epoch
    source = parts.source
    if source is None or source.kind != "resume":
        return
    # Counted from the record: an earlier resume may have changed how many steps an epoch has.
    rest_of_epoch = 0 if parts.epoch_closed else (train.batches - parts.position) // e.accum
    parts.total_steps = parts.step + rest_of_epoch + max(e.max_epochs - parts.epoch, 0) * per_epoch


def _used(parts: Parts, hook: str) -> bool:
    if hook == "train_step":
        return parts.manual
    if hook == "loss":
        return parts.hooks.has("loss") or not parts.manual
    if hook == "train_metrics":
        return parts.hooks.has(hook) and not parts.manual
    return hook == "forward" or parts.hooks.has(hook)


def _bind(parts: Parts) -> None:
    e = parts.experiment
    words: dict[str, Any] = {
        "schedules": parts.resolved.schedules,
        "origin": parts.resolved.schedules_origin,
        "total_steps": parts.total_steps or _UNKNOWN_HORIZON,
        "trains": "train" in parts.splits,
        "monitor": parts.monitor,
    }
    if parts.manual:
        state = jax.eval_shape(
            lambda params, layers: manual_optimizers(parts, params, layers), parts.params, parts.state
        )
        bound: Callable[..., Hyper] = partial(bind_manual, e, state)
    else:
        bound = partial(bind, e, parts.layout)
    parts.hyper = bound(**words)
    held = _held_schedules(parts)
    if held is not None:
        parts.hyper.load_state(held)
    _tell_horizon(parts, bound, words, held)
    if parts.hyper.plateaus and "train" in parts.splits and "val" not in parts.splits:
        raise ConfigError("a plateau schedule without a `val` split", fix="return a val split, or drop the plateau")
    check_judged_metrics(parts)


def _tell_horizon(
    parts: Parts, bound: Callable[..., Hyper], words: Mapping[str, Any], held: Mapping[str, Any] | None
) -> None:
    """A resume over another horizon recomputes the whole curve: say where it jumps."""
    meta = parts.source.resumed if parts.source is not None else None
    if meta is None or "train" not in parts.splits or meta.total_steps == parts.total_steps:
        return
    before = bound(**{**words, "total_steps": meta.total_steps})
    if held is not None:
        before.load_state(held)
    for sentence in horizon_jump(before, parts.hyper, parts.step):
        warn(f"another horizon than the checkpoint's: {sentence}")


def _held_schedules(parts: Parts) -> Mapping[str, Any] | None:
    """The state of the schedules in the record that a resume starts from, or that a handle only answers with."""
    source = parts.source
    if source is None or (source.kind != "resume" and "train" in parts.splits):
        return None
    return source.record.meta.rules.schedules


def manual_optimizers(parts: Parts, params: Any, state: Any) -> Any:
    """The optimizer states of manual mode, as the experiment's `setup_optimizers` makes them.

    Raises:
        HookError: a leaf of theirs is no array.
    """
    model = BoundModel(parts.model, train=True, key=parts.key)
    made = parts.hooks.call(parts.experiment, "setup_optimizers", model, params, state)
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


def _build_optimizer(parts: Parts, start: Start) -> None:
    e = parts.experiment
    if not parts.manual:
        parts.optimizer = Optimizer(e, parts.layout, parts.hyper, supplies_loss=True)
        w0 = parts.w0 if process_count() == 1 else jax.tree.map(host_array, parts.w0)
        parts.anchors = jax.tree.map(np.array, parts.optimizer.anchors(w0))
        parts.anchor_checksums = parts.optimizer.anchor_checksums(w0)
        parts.anchors = parts.placement.put_parameters(parts.anchors)
        parts.rule = parts.optimizer.rule
    parts.w0 = None


def _report(parts: Parts) -> None:
    e = parts.experiment
    parts.report.add("hooks", [{"hook": name, "of": owner} for name, owner in parts.hooks.owners().items()])
    parts.report.add("data", [_split_row(split, parts.placement.count) for split in parts.splits.values()])
    parts.report.add("bindings", [asdict(row) | {"bound": ", ".join(row.bound)} for row in parts.hyper.bindings])
    parts.report.add("parameter groups", [asdict(row) for row in parts.hyper.groups])
    parts.report.add("weight decay", decay_rows(parts.layout, parts.hyper))
    run: dict[str, Any] = {"seed": parts.seed, "max_epochs": e.max_epochs, "accum": e.accum, "steps": parts.total_steps}
    run["devices"] = parts.placement.count
    if process_count() > 1:
        run["processes"] = process_count()
    run["backend"] = parts.placement.devices[0].platform
    if parts.placement.count > 1 or e.sharding != "replicated":
        run["parameters"] = parts.placement.described(parts.params)
    parts.report.add("run", [run])


def _split_row(split: Split, devices: int) -> dict[str, Any]:
    plan = split.prefetch
    row: dict[str, Any] = {"split": split.name, "batches": split.batches, "batch size": split.batch_size}
    if split.resident is not None and devices == 1:
        return row | {"fed": "resident on the device"}
    row |= {"fed": plan.path, "workers": plan.workers, "staged": plan.device_batches, "ordered": plan.ordered}
    notes = [plan.note] if plan.note else []
    if plan.skips_on_reentry:
        notes.append("a resume inside an epoch reads the batches before it again")
    return row | {"note": "; ".join(notes)} if notes else row
