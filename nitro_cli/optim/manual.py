"""Manual mode: schedules bind by path into optimizer states that the experiment made itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import OptimizerError, ScheduleError, nearest
from nitro_cli.experiment import HookTable
from nitro_cli.experiment.hooks import ParamPath
from nitro_cli.optim.binding import (
    device_column,
    device_space,
    ema_columns,
    experiment_schedules,
    gradient_rule,
    with_log_names,
)
from nitro_cli.optim.gradient_rules import SingleGrad
from nitro_cli.optim.hyper_table import BindingRow, Column, Hyper
from nitro_cli.optim.placed_rule import takes_values
from nitro_cli.optim.schedule_values import resolve_entries
from nitro_cli.text import path_keys, path_text

__all__ = ["bind_manual"]


@dataclass(frozen=True)
class _Site:
    """One state of `optax.inject_hyperparams` in the optimizer states."""

    path: ParamPath
    names: frozenset[str]
    optax_scheduled: frozenset[str]


def bind_manual(
    e: Any,
    opt_state: Any,
    *,
    schedules: Mapping[str, Any] | None = None,
    origin: str = "class",
    total_steps: int,
    trains: bool = True,
    monitor: Any = None,
) -> Hyper:
    """Bind schedules into the optimizer states that `setup_optimizers` returned; their values are absolute.

    Schedulable are the numeric arguments of an optimizer built by `optax.inject_hyperparams(optax.adam)(...)`, whose
    state carries them. A key `learning_rate` or `opt.learning_rate` sets every such state that has it,
    `opt.<path>.learning_rate` those below a path of the returned tree. Device fields bind as in the automatic mode.

    Args:
        e: the experiment, run knobs resolved.
        opt_state: what `setup_optimizers` returned, arrays or shapes.
        schedules, origin, total_steps, trains, monitor: as for `bind`.

    Returns:
        Hyperparameters whose `apply_row(opt_state, row)` sets the scheduled ones before each step.

    Raises:
        ScheduleError: a key or a schedule does not fit.
        OptimizerError: the gradient rule is not the plain one.
    """
    rule = _plain_gradient(e)
    entries, origin = experiment_schedules(e, schedules, origin)
    device, refused = device_space(e)
    sites = _sites(opt_state, ())
    resolved, plateaus = resolve_entries(entries, total_steps, monitor, trains=trains)
    columns: list[Column] = []
    device_columns: list[Column] = []
    rows: list[BindingRow] = []
    places: dict[tuple[ParamPath, str], tuple[int, str]] = {}
    for key in sorted(entries, key=lambda k: len(_split(k)[1])):
        space, path, name = _space_of(key, sites, device, refused)
        source = resolved[key][0]
        if space == "device":
            device_columns.append(device_column(e, name, key, source))
            bound: tuple[str, ...] = (f"device/{name}",)
        else:
            hit = [s for s in sites if name in s.names and s.path[: len(path)] == path]
            _check_sites(key, name, hit)
            columns.append(Column(f"opt/{path_text((*path, name))}", source, 1.0, key))
            places.update({(site.path, name): (len(columns) - 1, key) for site in hit})
            bound = tuple(path_text((*site.path, name)) for site in hit)
        rows.append(BindingRow(key, bound, origin, source.text))
    columns += ema_columns(e)
    named = with_log_names([*columns, *device_columns], resolved, _log_names)
    indices = {place: index for place, (index, _) in places.items()}
    return Hyper(
        column_list=named[: len(columns)],
        device_columns=named[len(columns) :],
        device_fields=tuple(sorted(device)),
        rules={},
        grad_rule=rule,
        bindings=tuple(rows),
        groups=(),
        plateaus=plateaus,
        total_steps=total_steps,
        apply_row=lambda state, row: _apply(state, row, (), indices),
    )


def _plain_gradient(e: Any) -> SingleGrad:
    takes = takes_values(HookTable(e).bound(e, "grad_rule"))
    rule = SingleGrad() if takes else gradient_rule(e)
    if takes or not isinstance(rule, SingleGrad):
        raise OptimizerError(
            f"the gradient rule {'grad_rule(self, hp)' if takes else type(rule).__name__} has no effect in manual mode",
            why="train_step takes its gradients itself",
            fix="perturb in train_step, or drop grad_rule",
        )
    return rule


def _split(key: str) -> tuple[str, tuple[str, ...], str]:
    """A key's qualifier, its path and the hyperparameter it ends in."""
    first, *rest = key.split(".")
    if first in ("opt", "device", "grad") and rest:
        return first, tuple(rest[:-1]), rest[-1]
    return "", (), key


def _space_of(
    key: str, sites: Sequence[_Site], device: frozenset[str], refused: Mapping[str, str]
) -> tuple[str, ParamPath, str]:
    qualifier, text_path, name = _split(key)
    known = {n for site in sites for n in site.names}
    if qualifier == "opt":
        path = _find_path(key, text_path, sites)
        here = {n for site in sites if site.path[: len(path)] == path for n in site.names}
        if name not in here:
            raise _unknown(key, name, here, device if not path else frozenset())
        return "opt", path, name
    if qualifier == "device" or (not qualifier and name in device):
        if not qualifier and name in known:
            raise ScheduleError(
                f"the schedule key {key!r} is ambiguous",
                why="it names an optimizer hyperparameter and a Device field",
                fix=f"write 'opt.{name}' or 'device.{name}'",
            )
        if name in device:
            return "device", (), name
        if name in refused:
            raise ScheduleError(f"the field {name!r} cannot be scheduled", where=f"schedule {key!r}", why=refused[name])
        raise _unknown(key, name, set(), device)
    if not qualifier and name in known:
        return "opt", (), name
    if name in refused:
        raise ScheduleError(
            f"the field {name!r} cannot be scheduled",
            where=f"schedule {key!r}",
            why=refused[name],
            fix=f"mark it Device, or build the optimizer by optax.inject_hyperparams so that its state has {name!r}",
        )
    raise _unknown(key, name, known, device)


def _find_path(key: str, wanted: tuple[str, ...], sites: Sequence[_Site]) -> ParamPath:
    for site in sites:
        if tuple(str(k) for k in site.path[: len(wanted)]) == wanted:
            return site.path[: len(wanted)]
    paths = sorted({path_text(site.path).replace("/", ".") for site in sites})
    raise ScheduleError(
        f"the schedule {key!r} names the path {'.'.join(wanted)!r}, below which no hyperparameters are",
        why=f"the states that do are: {', '.join(paths) or 'none'}",
        fix="build the optimizer by optax.inject_hyperparams(factory)(...), and name its place in what "
        "setup_optimizers returned",
        nearest=nearest(".".join(wanted), paths),
    )


def _unknown(key: str, name: str, names: set[str], device: frozenset[str]) -> ScheduleError:
    known = sorted(names | device)
    return ScheduleError(
        f"the schedule key {key!r} binds to nothing",
        why=f"the injected hyperparameters and scalar Device fields are: {', '.join(known) or 'none'}",
        fix="build the optimizer by optax.inject_hyperparams(factory)(...), so that its state holds its arguments",
        nearest=nearest(name, known),
    )


def _check_sites(key: str, name: str, sites: Sequence[_Site]) -> None:
    for site in sites:
        if name in site.optax_scheduled:
            raise ScheduleError(
                f"the schedule {key!r} would be overwritten",
                where=f"optimizer state {path_text(site.path) or '.'}",
                why=f"optax.inject_hyperparams was given a schedule for {name!r} and sets it anew every step",
                fix="build the optimizer with a number there",
            )


def _log_names(columns: Sequence[Column]) -> dict[str, str]:
    """`schedule/<key>`, or `schedule/<path>/<key>`; qualified where a Device field has the name too."""
    short = {column.name: column.name.partition("/")[2] for column in columns}
    shared = {text for text in short.values() if list(short.values()).count(text) > 1}
    return {
        name: f"schedule/{name.replace('/', '.', 1)}" if text in shared else f"schedule/{text}"
        for name, text in short.items()
    }


def _is_injected(node: Any) -> bool:
    return isinstance(getattr(node, "hyperparams", None), dict) and hasattr(node, "inner_state")


def _injected(tree: Any) -> tuple[list[tuple[ParamPath, Any]], Any]:
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_injected)
    return [(path_keys(path), node) for path, node in flat], structure


def _sites(tree: Any, above: ParamPath) -> list[_Site]:
    found: list[_Site] = []
    for path, node in _injected(tree)[0]:
        if not _is_injected(node):
            continue
        here = (*above, *path)
        scheduled = frozenset(getattr(node, "hyperparams_states", {}))
        found.append(_Site(here, frozenset(node.hyperparams), scheduled))
        found += _sites(node.inner_state, here)
    return found


def _apply(tree: Any, row: Any, above: ParamPath, indices: Mapping[tuple[ParamPath, str], int]) -> Any:
    nodes, structure = _injected(tree)
    changed: list[Any] = []
    for path, node in nodes:
        if not _is_injected(node):
            changed.append(node)
            continue
        here = (*above, *path)
        values = {
            name: row[indices[here, name]].astype(jnp.asarray(old).dtype) if (here, name) in indices else old
            for name, old in node.hyperparams.items()
        }
        changed.append(node._replace(hyperparams=values, inner_state=_apply(node.inner_state, row, here, indices)))
    return jax.tree.unflatten(structure, changed)
