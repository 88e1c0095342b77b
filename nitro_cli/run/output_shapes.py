"""Whether what `forward` returns is a batch, told from shapes before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from nitro_cli.data import Split
from nitro_cli.errors import HookError
from nitro_cli.programs import EvalPlan, build_forward, fresh_trace

__all__ = ["check_evaluated_outputs", "check_outputs"]

FACTOR = 3
"""How much larger than the split's the batch is that the outputs must grow with: a table may have as many rows as the
batch by chance, and a model may want a divisible size."""


def check_evaluated_outputs(
    plan: EvalPlan, splits: Mapping[str, Split], params: Any, state: Any, device: Mapping[str, Any]
) -> None:
    """Refuse, where a split will be evaluated, a `forward` whose outputs do not grow with the batch.

    What is only trained may return what it likes: nothing of it is sliced.

    Args:
        plan: of the evaluation programs.
        splits: by name.
        params, state, device: what the model is called with.

    Raises:
        HookError: an output's first axis is not the batch.
    """
    split = next((split for name, split in splits.items() if name != "train"), None)
    if split is not None:
        taken = [name for name in plan.routing.fields_for("forward") if name in split.fields]
        samples = {name: (split.fields[name].shape, split.fields[name].dtype) for name in taken}
        check_outputs(plan, params, state, device, samples, split.batch_size)


def check_outputs(
    plan: EvalPlan,
    params: Any,
    state: Any,
    device: Mapping[str, Any],
    samples: Mapping[str, tuple[tuple[int, ...], Any]],
    size: int,
) -> None:
    """Refuse a `forward` whose outputs do not grow with the batch.

    Outputs are padded and sliced along their first axis, so one that is not the batch would lose rows in silence.

    Args:
        plan: of the evaluation programs.
        params, state, device: what the model is called with.
        samples: shape and dtype of one sample of each field that `forward` takes.
        size: the batch size that will be used.

    Raises:
        HookError: an output's first axis is not the batch.
    """
    function = build_forward(EvalPlan(plan.experiment, plan.routing, plan.model))

    def trace(rows: int) -> None:
        batch = {
            name: jax.ShapeDtypeStruct((rows, *shape), jax.dtypes.canonicalize_dtype(dtype))
            for name, (shape, dtype) in samples.items()
        }
        # A new function object, since JAX keeps traces by it.
        with fresh_trace():
            jax.eval_shape(lambda *args: function(*args), params, state, batch, dict(device))

    try:
        trace(FACTOR * size)
    except HookError:
        raise
    except Exception:  # the model may be made for one size alone, and is traced at that; its own errors show there
        trace(size)
