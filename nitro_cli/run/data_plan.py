"""The data of a run: sources built, splits inspected, hooks routed, before there is a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nitro_cli.data import FieldSpec, Split, answer_fork_warnings, inspect_split
from nitro_cli.distributed import WatchedDist, process_count, shared_split
from nitro_cli.errors import ConfigError, HookError
from nitro_cli.experiment import VALID, Experiment, HookTable, resolve_routing
from nitro_cli.run.devices import Placement
from nitro_cli.run.plan import DataPlan, HookPlan, Settings
from nitro_cli.run.restore import Source

__all__ = ["build_sources", "plan_data", "plan_hooks"]

_TRACED = ("forward", "loss", "train_metrics", "metrics", "train_step")


def build_sources(settings: Settings, given: Mapping[str, Any] | None, dist: WatchedDist) -> dict[str, Any]:
    """The sources by split: those of the call, else what `build_data` returns when it is given `dist`.

    Raises:
        ConfigError, HookError: the call's or the hook's are no mapping from names to sources.
    """
    if given is not None:
        built: Any = given
    else:
        with answer_fork_warnings("build_data"):
            built = settings.hooks.call(settings.experiment, "build_data", dist)
    if not isinstance(built, Mapping):
        if given is not None:
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
        refusal, origin = (HookError, "`build_data` returned") if given is None else (ConfigError, "`data=` has")
        raise refusal(
            f"{origin} a split named {odd[0]!r}, {type(odd[0]).__name__}",
            why="records and commands call a split by its name, which is text",
            fix='name every split by a string: {"train": ..., "val": ...}',
        )
    return built if isinstance(built, dict) else dict(built)


def plan_data(
    settings: Settings, sources: Mapping[str, Any], placement: Placement, source: Source | None, dist: WatchedDist
) -> DataPlan:
    """Look at one batch of every split: what is wrong with data shows before a model is built.

    Whether the processes may see different data is told by the `dist` that `build_data` was given.

    Raises:
        DataError, ConfigError: a split cannot be used.
    """
    e = settings.experiment
    splits: dict[str, Split] = {}
    for name, given in sources.items():
        accum = e.accum if name == "train" else 1
        train = name == "train"
        pads = train and _told_of_padding(settings)
        split = inspect_split(name, given, train=train, accum=accum, seed=settings.seed, pads=pads)
        split = split.checked_for_own_order(settings.seed)
        if process_count() > 1:
            split = shared_split(split, dist)
        placement.check_batch_size(name, split.batch_size)
        splits[name] = split
    held = source.record.meta.batch_fields if source is not None else {}
    recorded = {name: FieldSpec(np.dtype(entry.dtype), tuple(entry.shape)) for name, entry in held.items()}
    return DataPlan(sources, splits, recorded)


def plan_hooks(settings: Settings, data: DataPlan) -> HookPlan:
    """Route the fields of a batch to the hooks that run, and check that every split has them.

    Raises:
        RoutingError: a hook takes a field that a split lacks.
        DataError: a field that goes to the device holds what it cannot.
        HookError: `metrics_residency` returned something else than a place.
    """
    e, hooks = settings.experiment, settings.hooks
    manual, residency = hooks.manual(e), _residency(hooks, e)
    if not data.splits:
        return HookPlan(manual, residency, None)
    probe = data.splits.get("train") or next(iter(data.splits.values()))
    used = [hook for hook in _TRACED if _is_used(hooks, hook, manual)]
    on_host = {hook for hook, where in residency.items() if where == "host"}
    routing = resolve_routing(
        hooks,
        tuple(probe.fields),
        traced=tuple(hook for hook in used if hook not in on_host),
        host=tuple(hook for hook in residency if hook in on_host and hook in used),
    )
    for split in data.splits.values():
        needed = ["forward"] + ["metrics"] * (split.name != "train" and hooks.has("metrics"))
        for hook in needed:
            routing.signatures[hook].fields_for(tuple(split.fields), f"a batch of split {split.name!r}")
        split.check_device_fields(routing.device_fields)
        split.check_device_values(routing.device_fields, settings.seed)
    return HookPlan(manual, residency, routing)


def _told_of_padding(settings: Settings) -> bool:
    """Whether every hook that sees a batch of the train split is told which rows are no padding."""
    hooks, e = settings.hooks, settings.experiment
    manual = hooks.manual(e)
    taken = [hook for hook in ("train_step", "loss", "train_metrics") if _is_used(hooks, hook, manual)]
    if "train_metrics" in taken and _residency(hooks, e)["train_metrics"] == "host":
        return False
    return all(hooks.has(hook) and hooks.fields(hook).declares(VALID) for hook in taken if hook != "loss" or not manual)


def _residency(hooks: HookTable, e: Experiment) -> dict[str, str]:
    found: dict[str, str] = {hook: hooks.residency(e, hook) for hook in ("metrics", "train_metrics")}
    for hook, where in found.items():
        if not isinstance(where, str) or where not in ("host", "device"):
            raise HookError(
                f"`metrics_residency` returned {where!r} for {hook!r}",
                fix="return 'host' or 'device', and super().metrics_residency(hook) for a hook that stays where it is",
            )
    return found


def _is_used(hooks: HookTable, hook: str, manual: bool) -> bool:
    if hook == "train_step":
        return manual
    if hook == "loss":
        return hooks.has("loss") or not manual
    if hook == "train_metrics":
        return hooks.has(hook) and not manual
    return hook == "forward" or hooks.has(hook)
