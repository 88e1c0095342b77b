"""Which metrics a run goes by, and that validation reports them, as far as can be known before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from nitro_cli.data import Split
from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import Checkpointer, EarlyStopping, compile_view, of_training, parts_of
from nitro_cli.metrics import MODES
from nitro_cli.programs import build_eval_loss, build_forward, build_metrics, fresh_trace
from nitro_cli.run.plan import Plan

__all__ = ["check_judged_metrics", "judged_metrics"]


def judged_metrics(plan: Plan) -> Iterator[tuple[str, str]]:
    """What goes by a metric, in words, and by which; rules that follow a monitor that nobody set are left out."""
    e, monitor, selection = plan.experiment, plan.settings.monitor, plan.settings.selection
    if e.monitor is not None:
        assert monitor is not None
        yield "the monitor", monitor.metric
    if isinstance(e.early_stop, EarlyStopping) and (watched := e.early_stop.watched(monitor)) is not None:
        yield "early stopping", watched.metric
    if isinstance(e.checkpointer, Checkpointer):
        if e.checkpointer.metric is not None:
            yield "the checkpointer", e.checkpointer.metric
    elif getattr(e.checkpointer, "metric", None) is not None and selection is not None:
        yield "the checkpointer", selection.metric
    for key, counters in plan.optim.hyper.plateaus.items():
        yield f"the plateau on {key!r}", counters.metric


def check_judged_metrics(plan: Plan, params: Any, state: Any, device: Mapping[str, Any]) -> None:
    """Refuse a rule that goes by a metric which the validation of a training run cannot report.

    What `evaluate_split`, `finalize_metrics` and a `metrics` hook on the host report shows only when they run; all else
    is known here.

    Args:
        plan: of the run.
        params, state, device: what the model is called with.

    Raises:
        ConfigError: the metric cannot exist; those there are are listed.
    """
    split, e, hooks = plan.splits.get("val"), plan.experiment, plan.settings.hooks
    asked = dict(judged_metrics(plan))
    if "train" in plan.splits:
        _check_trained(plan, {what: name for what, name in asked.items() if of_training(name)}, params, state, device)
    asked = {what: metric for what, metric in asked.items() if not of_training(metric)}
    if split is None or "train" not in plan.splits or not asked or hooks.has("evaluate_split"):
        return
    if hooks.has("finalize_metrics"):
        _check_of_part(plan, asked)
        return
    custom = hooks.has("metrics")
    if custom and plan.hooks.residency["metrics"] == "host":
        return
    loss = _loss_missing(plan, split)
    if not custom and loss is None and set(asked.values()) == {"loss"}:
        return
    with_loss = loss is None and (not custom or e.eval_loss)
    reported = _reported(plan, split, custom, with_loss, (params, state, device))
    for what, metric in asked.items():
        if metric not in reported:
            raise ConfigError(
                f"{what} goes by {metric!r}, which the validation does not report",
                where=type(e).__name__,
                why=_why(reported, custom, loss),
                fix="name one that is reported, or return it from `metrics`",
                nearest=nearest(metric, reported),
            )


def _check_of_part(plan: Plan, asked: Mapping[str, str]) -> None:
    """Refuse a rule that goes by a metric which the part that supplies all of them does not report."""
    e, hooks = plan.experiment, plan.settings.hooks
    path = hooks.part_of("finalize_metrics")
    if path is None or hooks.part_of("metrics") != path:
        return
    known, owner = parts_of(e)[path].directions(), hooks.owner("metrics")
    if not known:
        return
    reported = (*known, *(["loss"] if e.eval_loss else []))
    for what, metric in asked.items():
        if e.eval_loss and metric.startswith("loss/"):  # a term of the loss, which only the loss itself knows
            continue
        if metric not in (*reported, "count"):
            raise ConfigError(
                f"{what} goes by {metric!r}, which {owner} does not report",
                where=type(e).__name__,
                why=f"its metrics are {', '.join(reported)}",
                fix="set eval_loss = true, and name loss"
                if metric in ("loss", "eval_loss")
                else "name one of them, or add it to the metrics of the task",
                nearest=nearest(metric, reported),
            )


def _check_trained(plan: Plan, asked: Mapping[str, str], params: Any, state: Any, device: Mapping[str, Any]) -> None:
    """Refuse a rule that goes by a metric of the train split which no step reports."""
    wanted = {what: metric for what, metric in asked.items() if metric != "train_loss"}
    if not wanted or plan.hooks.host_train_metrics or plan.hooks.manual:
        return
    known = ["train_loss", *_trained_names(plan, params, state, device)]
    for what, metric in wanted.items():
        if metric not in known:
            raise ConfigError(
                f"{what} goes by {metric!r}, which training does not report",
                where=type(plan.experiment).__name__,
                why=f"it reports {', '.join(known)}",
                fix="name one that is reported, or return it from `train_metrics`",
                nearest=nearest(metric, known),
            )


def _trained_names(plan: Plan, params: Any, state: Any, device: Mapping[str, Any]) -> list[str]:
    """The names that the epoch's row has of `train_metrics`; nothing is compiled or run."""
    if not plan.settings.hooks.has("train_metrics"):
        return []
    evaluated, routing, example = plan.evaluated(), plan.hooks.routed, plan.splits["train"].example
    batch = {name: _shape(value) for name, value in example.items() if name in routing.device_fields}

    def metrics(outputs: Any, batch: Any, device: Any) -> Any:
        return routing.call(compile_view(plan.experiment, device), "train_metrics", outputs, batch=batch)

    with fresh_trace():
        taken = {name: batch[name] for name in routing.fields_for("forward") if name in batch}
        outputs = jax.eval_shape(build_forward(evaluated), params, state, taken, device)
        return [f"train/{name}" for name in _names(jax.eval_shape(metrics, outputs, batch, device))]


def _loss_missing(plan: Plan, split: Split) -> str | None:
    """Why the loss is not reported on `split`; None where it is."""
    signature = plan.hooks.routed.signatures.get("loss")
    if signature is None:
        return "the experiment has no `loss`"
    lacking = signature.lacking(split.fields)
    return f"its batches lack {', '.join(lacking)}, which `loss` takes" if lacking else None


def _why(reported: tuple[str, ...], custom: bool, loss: str | None) -> str:
    if reported:
        hook = "" if custom else ": without a `metrics` hook that is the loss and its terms"
        return f"it reports {', '.join(reported)}{hook}"
    return f"it reports nothing: {loss}" if loss is not None else "it reports nothing"


def _reported(
    plan: Plan, split: Split, custom: bool, loss: bool, model: tuple[Any, Any, Mapping[str, Any]]
) -> tuple[str, ...]:
    """The names of what the traced hooks return for a batch of `split`; nothing is compiled or run."""
    evaluated, routing = plan.evaluated(), plan.hooks.routed
    params, state, device = model
    batch = {name: _shape(value) for name, value in split.example.items() if name in routing.device_fields}

    def taken(hook: str) -> dict[str, Any]:
        return {name: batch[name] for name in routing.fields_for(hook) if name in batch}

    found: Mapping[str, Any] = {}
    with fresh_trace():
        outputs = jax.eval_shape(build_forward(evaluated), params, state, taken("forward"), device)
        if custom:
            found = jax.eval_shape(build_metrics(evaluated, None), outputs, taken("metrics"), device)
        if loss:
            # A loss that is made of terms is not among them.
            losses = jax.eval_shape(build_eval_loss(evaluated, None), outputs, taken("loss"), device)
            found = {**found, "loss": None, **losses}
    return tuple(_names(found))


def _names(metrics: Any, prefix: str = "") -> Iterator[str]:
    """The reported names: nested mappings, also those inside a combinable value, joined by slashes."""
    for name, value in metrics.items():
        inner = value.value if isinstance(value, MODES) else value
        if isinstance(inner, Mapping):
            yield from _names(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}"


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))
