"""Binding an experiment's schedules to its optimizer, its Device fields and its gradient rule."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError, ExitCode, OptimizerError, ScheduleError
from nitro_cli.experiment import FieldKind, HookTable, config_metadata, device_array, field_value, part_fields
from nitro_cli.optim.gradient_rules import GradRule, SingleGrad, checked_rule, rule_fields
from nitro_cli.optim.group_rates import GroupRates, group_rates
from nitro_cli.optim.group_rule import GroupRule, check_answered, group_rule
from nitro_cli.optim.hyper_table import BindingRow, Column, GroupRow, Hyper, constant_column, log_names
from nitro_cli.optim.layout import DEFAULT_GROUP, ParamLayout
from nitro_cli.optim.placed_rule import PlacedRule, RuleValues, called, check_read, takes_values
from nitro_cli.optim.schedule_keys import Binding, KeySpace, candidate_names, flat_schedules, resolve_keys
from nitro_cli.optim.schedule_values import BoundValue, resolve_entries
from nitro_cli.optim.value_source import ValueSource

__all__ = [
    "anchor_name",
    "bind",
    "check_schedule_keys",
    "device_column",
    "device_space",
    "ema_columns",
    "experiment_schedules",
    "gradient_rule",
    "with_log_names",
]


def bind(
    e: Any,
    layout: ParamLayout,
    *,
    schedules: Mapping[str, Any] | None = None,
    origin: str = "class",
    total_steps: int,
    trains: bool = True,
    clip_norm: float | None = None,
    monitor: Any = None,
) -> Hyper:
    """Bind every schedule and lay out the traced hyperparameters.

    Args:
        e: the experiment, run knobs resolved.
        layout: of its parameters.
        schedules: what replaces the experiment's `schedules()` whole; None takes that.
        origin: where `schedules` came from: `"preset"` or `"keyword"`; ignored without it.
        total_steps: the horizon, `max_epochs * batches // accum`.
        trains: whether the values will be trained by; without, a schedule that the horizon does not suit is taken over
            the next one that does.
        clip_norm: global gradient norm to clip at, 0 is off; None takes `gradient_clip_norm`.
        monitor: the run's `(metric, mode)` for plateaus that name none, or None.

    Returns:
        The hyperparameters, with one slot for each whether it is constant or scheduled.

    Raises:
        ScheduleError: a key or a schedule does not fit.
        OptimizerError: the rates, decays, or the optimizer hook do not fit.
    """
    entries, origin = experiment_schedules(e, schedules, origin)
    rates = group_rates(e, layout.groups)
    rules = {g: group_rule(e, g, layout.of_group(g), candidate_names(entries, g)) for g in layout.groups}
    check_answered(e, rules)
    with _blamed(origin):
        resolved, plateaus = resolve_entries(entries, total_steps, monitor, trains=trains)
        gradient, hp = _first_rule(e, resolved)
        bindings = _resolved_keys(entries, _key_space(e, rules, gradient, binds=hp is not None))
    _check_decay(bindings, rates, rules)
    columns = [
        *_group_columns(layout, rates, rules, bindings, resolved),
        constant_column("clip_norm", _clip_norm(e.gradient_clip_norm if clip_norm is None else clip_norm)),
        *ema_columns(e),
        *_gradient_columns(gradient, bindings, resolved),
    ]
    device = [device_column(e, b.name, b.key, resolved[b.key][0]) for b in bindings if b.space == "device"]
    bound = [Column(f"bind/{b.name}", resolved[b.key][0], 1.0, b.key) for b in bindings if b.space == "bind"]
    named = with_log_names([*columns, *device, *bound], resolved, lambda varying: log_names(varying, layout.groups))
    first_bound = len(columns) + len(device)
    return Hyper(
        column_list=named[: len(columns)],
        device_columns=named[len(columns) : first_bound],
        bind_columns=named[first_bound:],
        placed=_placed_rule(e, gradient, hp, bindings, {column.name: i for i, column in enumerate(named)}),
        device_fields=tuple(sorted(device_space(e)[0])),
        rules=rules,
        grad_rule=gradient,
        bindings=tuple(_binding_row(b, origin, resolved[b.key]) for b in bindings),
        groups=tuple(_group_row(e, layout, g, rates[g], rules[g], columns) for g in layout.groups),
        plateaus=plateaus,
        total_steps=total_steps,
    )


def check_schedule_keys(e: Any, schedules: Mapping[str, Any]) -> None:
    """Check the keys of schedules as far as that needs no parameters.

    Where hooks make the optimizer, its groups or its gradients, only keys of the space `device` can be told.

    Raises:
        ScheduleError: as `resolve_keys`.
    """
    hooks, entries = HookTable(e), flat_schedules(schedules)
    rules: dict[str, GroupRule] = {}
    if any(hooks.has(hook) for hook in ("optimizer", "param_group", "grad_rule", "train_step")):
        entries = {key: entry for key, entry in entries.items() if key.startswith("device.")}
    else:
        rules = {DEFAULT_GROUP: group_rule(e, DEFAULT_GROUP, (), candidate_names(entries, DEFAULT_GROUP))}
    resolve_keys(list(entries), _key_space(e, rules, SingleGrad(), binds=False))


def _key_space(e: Any, rules: Mapping[str, GroupRule], gradient: GradRule, *, binds: bool) -> KeySpace:
    device, refused = device_space(e)
    return KeySpace(
        groups={g: {"learning_rate", "weight_decay", *r.arguments} for g, r in rules.items()},
        open_groups={g for g, r in rules.items() if r.open},
        device=device,
        grad=frozenset(rule_fields(gradient)),
        refused=refused,
        binds=binds,
    )


@contextlib.contextmanager
def _blamed(origin: str) -> Iterator[None]:
    """What the hook `schedules` returned fails as what other hooks return, not as configuration does."""
    try:
        yield
    except ScheduleError as error:
        if origin == "class":
            error.exit_code = ExitCode.FAILED
        raise


def experiment_schedules(e: Any, schedules: Mapping[str, Any] | None, origin: str) -> tuple[dict[str, Any], str]:
    """The schedules that hold for this run, with dotted keys, and where they came from."""
    if schedules is None:
        own = HookTable(e).call(e, "schedules")
        with _blamed("class"):
            return flat_schedules({} if own is None else own), "class"
    return flat_schedules(schedules), origin


def gradient_rule(e: Any) -> GradRule:
    """What the `grad_rule` hook returned; None is the plain gradient.

    Raises:
        OptimizerError: it is not a gradient rule.
    """
    return checked_rule(HookTable(e).call(e, "grad_rule"))


def _first_rule(e: Any, resolved: Mapping[str, BoundValue]) -> tuple[GradRule, RuleValues | None]:
    """The gradient rule of the first step, and what its hook was called with where it takes the step's numbers."""
    hook = HookTable(e).bound(e, "grad_rule")
    if not takes_values(hook):
        return gradient_rule(e), None
    first = {key: float(source.values(1, 1)[0]) for key, (source, _) in resolved.items()}
    fields = {key.removeprefix("grad."): v for key, v in first.items() if "." not in key.removeprefix("grad.")}
    hp = RuleValues(fields, {key.removeprefix("bind."): v for key, v in first.items() if key.startswith("bind.")})
    return called(hook, hp, 1), hp


def _placed_rule(
    e: Any, first: GradRule, hp: RuleValues | None, bindings: Sequence[Binding], columns: Mapping[str, int]
) -> PlacedRule | None:
    """Where the hook's numbers stand in the rows; None where it takes none."""
    if hp is None:
        return None
    fields = {b.name: b.key for b in bindings if b.space == "grad"}
    bind = {b.name: b.key for b in bindings if b.space == "bind"}
    check_read(hp, fields, bind)
    return PlacedRule(
        HookTable(e).bound(e, "grad_rule"),
        first,
        fields={name: columns[f"grad/{name}"] for name in fields},
        bind={name: columns[f"bind/{name}"] for name in bind},
        places={name: columns[f"grad/{name}"] for name in rule_fields(first)},
    )


def device_space(e: Any) -> tuple[frozenset[str], dict[str, str]]:
    """The Device fields that a schedule can drive, and the reason for every other field of the experiment."""
    scalars: set[str] = set()
    refused: dict[str, str] = {}
    fields = [(name, meta.kind) for name, meta in config_metadata(type(e)).items()]
    for name, kind in [*fields, *((leaf.path, leaf.kind) for leaf in part_fields(e))]:
        if kind == FieldKind.DEVICE:
            value = field_value(e, name)
            if value is None:
                refused[name] = "it is not set, so no program takes it; give it a number"
            elif np.ndim(value) == 0 and not isinstance(value, bool | np.bool_):
                scalars.add(name)
            else:
                refused[name] = f"it holds {_described(value)}; a schedule drives a scalar number"
        elif kind == FieldKind.GRAPHCONST:
            refused[name] = "it is GraphConst: its value is baked into the program, another one recompiles"
        else:
            refused[name] = "it is a Host field: traced code never sees it"
    return frozenset(scalars), refused


def _described(value: Any) -> str:
    shape = np.shape(value)
    return f"an array of shape {shape}" if shape else f"a {type(value).__name__}"


def _resolved_keys(entries: Mapping[str, Any], space: KeySpace) -> list[Binding]:
    """Bind the keys; one that nothing takes goes to the open optimizers, which are refused if they ignore it."""
    closed = dict(space.groups)
    for key in entries:
        known = "." in key or key in space.every_name() or key in space.refused
        if not known and space.open_groups:
            for group in space.open_groups:
                closed[group] = {*closed[group], key}
    return resolve_keys(list(entries), replace(space, groups=closed))


def _check_decay(bindings: Sequence[Binding], rates: Mapping[str, GroupRates], rules: Mapping[str, GroupRule]) -> None:
    scheduled = {group: b.key for b in bindings if b.space == "opt" and b.name == "weight_decay" for group in b.groups}
    declared = {group for group in scheduled if rates[group].declares_decay}
    bare = any("." not in key or key == "opt.weight_decay" for key in scheduled.values())
    if bare:
        declared |= {group for group, rate in rates.items() if rate.declares_decay}
    if declared:
        named = ", ".join(sorted(declared))
        raise ScheduleError(
            f"weight_decay is scheduled while group_weight_decay declares its own for: {named}",
            why="one of the two would be ignored",
            fix="drop the schedule, or schedule each group by opt.<group>.weight_decay and drop group_weight_decay",
        )
    for group, rule in rules.items():
        if rule.own_decay and (rates[group].weight_decay != 0 or group in scheduled):
            held = "a schedule" if group in scheduled else f"{rates[group].weight_decay:g}"
            raise OptimizerError(
                f"the group {group!r} would decay twice",
                where=f"optimizer: {rule.name}",
                why=f"the factory has its own {rule.own_decay}, and the framework's weight_decay is {held}",
                fix=f"either leave weight_decay at 0 and give the factory its own: functools.partial(..., "
                f"{rule.own_decay}=...); or decay by the framework: a factory without it (optax.adam for adamw), "
                f"or functools.partial(..., {rule.own_decay}=0.0)",
            )


def _group_columns(
    layout: ParamLayout,
    rates: Mapping[str, GroupRates],
    rules: Mapping[str, GroupRule],
    bindings: Sequence[Binding],
    resolved: Mapping[str, BoundValue],
) -> list[Column]:
    columns: list[Column] = []
    for group in layout.groups:
        bound = {b.name: b.key for b in bindings if b.space == "opt" and group in b.groups}
        constants = {"learning_rate": rates[group].learning_rate, **rules[group].numbers}
        if not rules[group].own_decay:
            constants["weight_decay"] = rates[group].weight_decay
        for name in [*constants, *(n for n in sorted(bound) if n not in constants)]:
            if name in bound:
                factor = rates[group].ratio if name == "learning_rate" else 1.0
                columns.append(Column(f"{group}/{name}", resolved[bound[name]][0], factor, bound[name]))
            else:
                columns.append(constant_column(f"{group}/{name}", constants[name]))
    return columns


def _gradient_columns(rule: GradRule, bindings: Sequence[Binding], resolved: Mapping[str, BoundValue]) -> list[Column]:
    bound = {b.name: b.key for b in bindings if b.space == "grad"}
    return [
        Column(f"grad/{name}", resolved[bound[name]][0], 1.0, bound[name])
        if name in bound
        else constant_column(f"grad/{name}", value)
        for name, value in rule_fields(rule).items()
    ]


def device_column(e: Any, name: str, key: str, source: ValueSource) -> Column:
    """The column of a scheduled Device field."""
    return Column(f"device/{name}", source, 1.0, key, dtype=device_array(field_value(e, name)).dtype)


def ema_columns(e: Any) -> list[Column]:
    """The columns of the weights' average, none without one."""
    if e.ema is None:
        return []
    values = {"ema_beta": e.ema.beta, "ema_warmup": float(e.ema.warmup), "ema_every": e.ema.every}
    return [constant_column(name, value) for name, value in values.items()]


def _clip_norm(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(
            f"gradient_clip_norm is {value!r}",
            why="it bounds the global norm of the gradient",
            fix="0 switches it off",
        )
    return float(value)


def with_log_names(
    columns: Sequence[Column],
    resolved: Mapping[str, BoundValue],
    naming: Callable[[Sequence[Column]], Mapping[str, str]],
) -> tuple[Column, ...]:
    """The columns, those that vary with their name on the train lines."""
    varying = [c for c in columns if c.key is not None and (resolved[c.key][1] or resolved[c.key][0].constant is None)]
    names = naming(varying)
    return tuple(replace(column, log=names.get(column.name)) for column in columns)


def _binding_row(binding: Binding, origin: str, resolved: BoundValue) -> BindingRow:
    bound = tuple(f"{group}/{binding.name}" for group in binding.groups) or (f"{binding.space}/{binding.name}",)
    return BindingRow(binding.key, bound, origin, resolved[0].text)


def _group_row(
    e: Any, layout: ParamLayout, group: str, rates: GroupRates, rule: GroupRule, columns: Sequence[Column]
) -> GroupRow:
    leaves = layout.of_group(group)
    keys = {column.name: column.key for column in columns}
    rate, coefficient = keys[f"{group}/learning_rate"], keys.get(f"{group}/weight_decay")
    if rule.own_decay:
        decay = f"the factory's own {rule.own_decay}"
    else:
        decay = (
            f"scheduled by {coefficient}"
            if coefficient
            else (f"{rates.weight_decay:g}" if rates.weight_decay else "none")
        )
    return GroupRow(
        group=group,
        rate=f"scheduled by {rate}" if rate else f"{rates.learning_rate:g}",
        ratio=rates.ratio,
        anchor=anchor_name(HookTable(e).call(e, "decay_anchor", group)),
        decay=decay,
        rule=rule.name,
        parameters=sum(leaf.size for leaf in leaves),
        leaves=len(leaves),
    )


def anchor_name(anchor: Any) -> str:
    """How reports name what a group decays toward."""
    return anchor if isinstance(anchor, str) else "a tree"
