"""The `check_batch` hook on every split: at setup on the first batch and on resident arrays, then in the producers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from nitro_cli.data import Split
from nitro_cli.experiment import BatchProblem
from nitro_cli.metrics import Concat
from nitro_cli.programs import EvalPlan, build_eval_loss, build_forward, build_metrics, fresh_trace
from nitro_cli.run.plan import DataPlan, Settings
from nitro_cli.run.report import SetupReport

__all__ = ["with_batch_checks"]


def with_batch_checks(
    settings: Settings,
    plan: EvalPlan,
    data: DataPlan,
    model: tuple[Any, Any, Mapping[str, Any]],
    report: SetupReport,
) -> DataPlan:
    """The splits with the experiment's own check of their batches, which each has passed so far.

    Nothing is compiled: what `forward` gives, and loss and metrics of it, are traced by their shapes.

    Args:
        settings: of the run.
        plan: of the evaluation programs.
        data: the splits.
        model: parameters, layer state and Device fields, with which it is called.
        report: told how much metrics keep of a split.

    Raises:
        DataError: the hook finds something wrong with a first batch, or with resident arrays.
    """
    hooks = settings.hooks
    if not hooks.has("check_batch"):
        return data
    signature, traced = hooks.fields("check_batch"), EvalPlan(plan.experiment, plan.routing, plan.model)
    checked, kept = dict(data.splits), []
    # Splits whose batches look alike are traced once.
    given: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}
    for name, split in data.splits.items():
        if signature.lacking(split.fields):
            continue
        key = (split.batch_size, *((field, str(spec)) for field, spec in split.fields.items()))
        if key not in given:
            given[key] = _traced_outputs(traced, split, *model)
        outputs = given[key]

        def check(batch: Mapping[str, np.ndarray], outputs: Any) -> BatchProblem | None:
            found: BatchProblem | None = hooks.call(settings.experiment, "check_batch", outputs, batch=batch)
            return found

        checked[name] = split.checked_by(partial(check, outputs=outputs), settings.seed)
        if key not in sizes:  # after the check, whose words are plainer than those of a failed trace
            sizes[key] = _traced_hooks(traced, split, outputs, model[2])
        if sizes[key] and name != "train":
            kept.append({"split": name, "bytes": sizes[key] * split.batches})
    report.add("kept for metrics", kept)
    return replace(data, splits=checked)


def _traced_hooks(plan: EvalPlan, split: Split, outputs: Any, device: Mapping[str, Any]) -> int:
    """Trace loss and metrics of a batch; the bytes that metrics keep of it."""
    size = 0
    with fresh_trace():
        if _takes(plan, "loss", split):
            jax.eval_shape(build_eval_loss(plan, None), outputs, _shapes(plan, "loss", split), dict(device))
        if _takes(plan, "metrics", split):
            args = (outputs, _shapes(plan, "metrics", split), dict(device))
            size = _kept(jax.eval_shape(build_metrics(plan, None), *args))
    return size


def _takes(plan: EvalPlan, hook: str, split: Split) -> bool:
    """Whether a split has what a traced hook takes."""
    return hook in plan.routing.traced and not plan.routing.signatures[hook].lacking(split.fields)


def _kept(values: Any) -> int:
    """The bytes of a batch's entries that are kept until the end of a split."""
    found = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, Concat))
    leaves = jax.tree.leaves([value for value in found if isinstance(value, Concat)])
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _traced_outputs(plan: EvalPlan, split: Split, params: Any, state: Any, device: Mapping[str, Any]) -> Any:
    with fresh_trace():
        return jax.eval_shape(build_forward(plan), params, state, _shapes(plan, "forward", split), dict(device))


def _shapes(plan: EvalPlan, hook: str, split: Split) -> dict[str, Any]:
    taken = [name for name in plan.routing.fields_for(hook) if name in split.fields]
    return {
        name: jax.ShapeDtypeStruct(
            (split.batch_size, *split.fields[name].shape), jax.dtypes.canonicalize_dtype(split.fields[name].dtype)
        )
        for name in taken
    }
