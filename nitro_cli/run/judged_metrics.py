"""Which metrics a run goes by, and that validation reports them, as far as can be known before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from nitro_cli.data import Split
from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import Checkpointer, EarlyStopping
from nitro_cli.metrics import MODES
from nitro_cli.programs import EvalPlan, build_eval_loss, build_forward, build_metrics, fresh_trace
from nitro_cli.run.parts import Parts

__all__ = ["check_judged_metrics", "judged_metrics"]


def judged_metrics(parts: Parts) -> Iterator[tuple[str, str]]:
    """What goes by a metric, in words, and by which; rules that follow a monitor that nobody set are left out."""
    e, monitor = parts.experiment, parts.monitor
    if e.monitor is not None:
        yield "the monitor", e.monitor[0]
    if isinstance(e.early_stop, EarlyStopping) and (watched := e.early_stop.watched(monitor)) is not None:
        yield "early stopping", watched.metric
    if isinstance(e.checkpointer, Checkpointer):
        if e.checkpointer.metric is not None:
            yield "the checkpointer", e.checkpointer.metric
    elif getattr(e.checkpointer, "metric", None) is not None and parts.selection is not None:
        yield "the checkpointer", parts.selection.metric
    for key, counters in parts.hyper.plateaus.items():
        yield f"the plateau on {key!r}", counters.metric


def check_judged_metrics(parts: Parts) -> None:
    """Refuse a rule that goes by a metric which the validation of a training run cannot report.

    What `finalize_metrics` and a `metrics` hook on the host report shows only when they run; all else is known here.

    Raises:
        ConfigError: the metric cannot exist; those there are are listed.
    """
    split = parts.splits.get("val")
    asked = dict(judged_metrics(parts))
    if split is None or "train" not in parts.splits or not asked or parts.hooks.has("finalize_metrics"):
        return
    custom = parts.hooks.has("metrics")
    if custom and parts.residency["metrics"] == "host":
        return
    loss = _loss_missing(parts, split)
    if not custom and loss is None and set(asked.values()) == {"loss"}:
        return
    reported = _reported(parts, split, custom, loss is None and (not custom or parts.experiment.eval_loss))
    for what, metric in asked.items():
        if metric not in reported:
            raise ConfigError(
                f"{what} goes by {metric!r}, which the validation does not report",
                where=type(parts.experiment).__name__,
                why=_why(reported, custom, loss),
                fix="name one that is reported, or return it from `metrics`",
                nearest=nearest(metric, reported),
            )


def _loss_missing(parts: Parts, split: Split) -> str | None:
    """Why the loss is not reported on `split`; None where it is."""
    signature = parts.routing.signatures.get("loss")
    if signature is None:
        return "the experiment has no `loss`"
    lacking = signature.lacking(split.fields)
    return f"its batches lack {', '.join(lacking)}, which `loss` takes" if lacking else None


def _why(reported: tuple[str, ...], custom: bool, loss: str | None) -> str:
    if reported:
        hook = "" if custom else ": without a `metrics` hook that is the loss and its terms"
        return f"it reports {', '.join(reported)}{hook}"
    return f"it reports nothing: {loss}" if loss is not None else "it reports nothing"


def _reported(parts: Parts, split: Split, custom: bool, loss: bool) -> tuple[str, ...]:
    """The names of what the traced hooks return for a batch of `split`; nothing is compiled or run."""
    plan = EvalPlan(parts.experiment, parts.routing, parts.model, parts.placement.layout)
    device = parts.device_now()
    batch = {name: _shape(value) for name, value in split.example.items() if name in parts.routing.device_fields}

    def taken(hook: str) -> dict[str, Any]:
        return {name: batch[name] for name in parts.routing.fields_for(hook) if name in batch}

    found: Mapping[str, Any] = {}
    with fresh_trace():
        outputs = jax.eval_shape(build_forward(plan), parts.params, parts.state, taken("forward"), device)
        if custom:
            found = jax.eval_shape(build_metrics(plan, None), outputs, taken("metrics"), device)
        if loss:
            found = {**found, **jax.eval_shape(build_eval_loss(plan, None), outputs, taken("loss"), device)}
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
