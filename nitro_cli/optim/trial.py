"""Trying a group's optimizer under tracing at setup, so that what cannot work is refused with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nitro_cli.errors import HookError, NitroError, OptimizerError, nearest, warn
from nitro_cli.optim.dependence import used_entries
from nitro_cli.optim.group_rule import GroupRule, build_transformation
from nitro_cli.optim.hyper_table import Hyper
from nitro_cli.optim.hyperparameters import HyperParams

__all__ = ["try_rule"]


def try_rule(
    e: Any,
    hyper: Hyper,
    group: str,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    anchor: Mapping[str, Any] | None,
    decay_mask: Mapping[str, bool],
    *,
    supplies_loss: bool,
) -> bool:
    """Trace one update of a group with every hyperparameter as an input; whether the rule reads the loss.

    Raises:
        OptimizerError: it cannot be traced so, needs what is not supplied, changes its state's structure, keeps other
            weights to evaluate with, has its decay in another place than the end, or ignores a scheduled value.
    """
    rule = hyper.rules[group]
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    names = ["learning_rate", "weight_decay", *hyper.scheduled_of_group(group)]
    entries: dict[str, Any] = dict.fromkeys(names, scalar)

    def build(values: Mapping[str, Any], anchors: Any) -> tuple[Any, HyperParams]:
        scheduled = {n: v for n, v in values.items() if n not in ("learning_rate", "weight_decay")}
        hp = HyperParams(values["learning_rate"], values["weight_decay"], anchors, decay_mask, scheduled)
        return build_transformation(e, rule, hp, scheduled), hp

    def init(values: Mapping[str, Any], params: Any, anchors: Any) -> Any:
        return build(values, anchors)[0].init(params)

    def update(values: Mapping[str, Any], grads: Any, state: Any, params: Any, anchors: Any, extra: Any) -> Any:
        transformation, hp = build(values, anchors)
        updates, new_state = transformation.update(grads, state, params, **extra)
        _check_decay_is_last(rule, hp, updates)
        return updates, new_state

    try:
        state = jax.eval_shape(init, entries, dict(shapes), anchor)
        _check_evaluated_weights(rule, state)
    except HookError:
        raise
    except Exception as error:
        raise _refused(rule, error) from error
    arguments = (dict(shapes), state, dict(shapes), anchor)
    wants_loss = False
    try:
        used, result = used_entries(update, entries, *arguments, {})
    except NitroError:
        raise
    except Exception as first:
        try:
            used, result = used_entries(update, entries, *arguments, {"value": scalar})
        except Exception:
            raise _refused(rule, first) from first
        wants_loss = True
        if not supplies_loss:
            raise _reads_loss(rule, first) from first
    _check_structure(rule, state, result[1])
    _check_used(hyper, rule, used, decays=any(decay_mask.values()))
    return wants_loss


def _reads_loss(rule: GroupRule, error: Exception) -> OptimizerError:
    return OptimizerError(
        "the optimizer reads the loss, which the train step does not give it",
        where=f"optimizer of the group {rule.group!r}: {rule.name}",
        why=_first_line(error),
        fix="choose a rule that reads the gradient only",
    )


def _check_used(hyper: Hyper, rule: GroupRule, used: frozenset[str], *, decays: bool) -> None:
    group = rule.group
    scheduled = {
        column.name.removeprefix(f"{group}/"): column.key
        for column in hyper.column_list
        if column.name.startswith(f"{group}/") and column.key is not None
    }
    if rule.level != 2 or not decays:
        scheduled.pop("weight_decay", None)
    elif "weight_decay" not in used and "weight_decay" not in scheduled and _constant(hyper, f"{group}/weight_decay"):
        raise OptimizerError(
            f"the optimizer of the group {group!r} ignores its weight decay",
            where=rule.name,
            why=f"weight_decay is {_constant(hyper, f'{group}/weight_decay'):g}, and no update depends on it",
            fix="end the chain with decay(hp)",
        )
    for name, key in scheduled.items():
        if name not in used:
            fix = (
                "end the chain with decay(hp)" if name == "weight_decay" else f"read hp.{name} where the chain is built"
            )
            raise OptimizerError(
                f"the optimizer of the group {group!r} ignores the scheduled {name!r}",
                where=f"schedule {key!r}; {rule.name}",
                why="no update depends on it, so the schedule would have no effect",
                fix=fix if rule.level == 2 else "drop the schedule",
                nearest=nearest(name, rule.arguments - {name}),
            )
    if "learning_rate" not in used and rule.level == 2:
        warn(f"the optimizer of the group {group!r} does not use hp.learning_rate: the group's rate has no effect")


def _constant(hyper: Hyper, name: str) -> float:
    for column in hyper.column_list:
        if column.name == name and column.key is None:
            return column.source.constant or 0.0
    return 0.0


def _check_decay_is_last(rule: GroupRule, hp: HyperParams, updates: Mapping[str, Any]) -> None:
    for output in hp.decay_outputs:
        if any(isinstance(value, jax.Array) and updates.get(text) is not value for text, value in output.items()):
            raise OptimizerError(
                "decay(hp) is not the last member of the chain",
                where=rule.name,
                why="it is scaled by the learning rate already; whatever follows would scale it again",
                fix="return optax.chain(..., decay(hp))",
            )


def _check_evaluated_weights(rule: GroupRule, state: Any) -> None:
    kinds = (optax.contrib.ScheduleFreeState,)
    held = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kinds)) if isinstance(x, kinds)]
    if held:
        raise OptimizerError(
            "schedule-free rules are not supported",
            where=f"optimizer of the group {rule.group!r}: {rule.name}",
            why="they are evaluated at other weights than they train, which validation and export would not see",
            fix="use the rule alone, with a schedule or with ema=EMA(0.999) for an average to evaluate",
        )


def _check_structure(rule: GroupRule, state: Any, new_state: Any) -> None:
    before, after = str(jax.tree.structure(state)), str(jax.tree.structure(new_state))
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (state, new_state)]
    if before != after or shapes[0] != shapes[1]:
        raise OptimizerError(
            "the optimizer's state changes its structure",
            where=f"optimizer of the group {rule.group!r}: {rule.name}",
            why=f"it begins as {before} and is {after} after one update",
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _refused(rule: GroupRule, error: Exception) -> OptimizerError:
    if isinstance(error, OptimizerError):
        return error
    where = f"optimizer of the group {rule.group!r}: {rule.name}"
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        return OptimizerError(
            "the optimizer cannot take traced hyperparameters",
            where=where,
            why=f"its Python code reads the value of one: {_first_line(error)}",
            fix="choose another rule, or give the value as a constant by functools.partial instead of a schedule",
        )
    if "value_fn" in str(error) or "obj_fn" in str(error):
        return OptimizerError(
            "the optimizer evaluates the loss again inside its step",
            where=where,
            why=f"a train step gives it one gradient: {_first_line(error)}",
            fix="choose another rule; optax.lbfgs works with linesearch=None in a functools.partial",
        )
    return OptimizerError(
        "the optimizer cannot be used",
        where=where,
        why=f"one update with a gradient and parameters raised {type(error).__name__}: {_first_line(error)}",
        fix="give what it needs by functools.partial, or build the chain in optimizer(self, group, hp)",
    )
