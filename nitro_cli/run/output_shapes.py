"""Whether what `forward` returns is a batch, told from shapes before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from nitro_cli.errors import HookError
from nitro_cli.programs import EvalPlan, build_forward, fresh_trace

if TYPE_CHECKING:
    from nitro_cli.run.parts import Parts

__all__ = ["check_evaluated_outputs", "check_outputs"]

FACTOR = 3
"""How much larger than the split's the batch is that the outputs must grow with: a table may have as many rows as the
batch by chance, and a model may want a divisible size."""


def check_evaluated_outputs(parts: Parts) -> None:
    """Refuse, where a split will be evaluated, a `forward` whose outputs do not grow with the batch.

    What is only trained may return what it likes: nothing of it is sliced.

    Raises:
        HookError: an output's first axis is not the batch.
    """
    split = next((split for name, split in parts.splits.items() if name != "train"), None)
    if split is not None:
        samples = {name: split.fields[name] for name in parts.forward_fields() if name in split.fields}
        check_outputs(parts, {name: (spec.shape, spec.dtype) for name, spec in samples.items()}, split.batch_size)


def check_outputs(parts: Parts, samples: Mapping[str, tuple[tuple[int, ...], Any]], size: int) -> None:
    """Refuse a `forward` whose outputs do not grow with the batch; once per handle.

    Outputs are padded and sliced along their first axis, so one that is not the batch would lose rows in silence.

    Args:
        parts: of the handle.
        samples: shape and dtype of one sample of each field that `forward` takes.
        size: the batch size that will be used.

    Raises:
        HookError: an output's first axis is not the batch.
    """
    if parts.outputs_checked:
        return
    function = build_forward(EvalPlan(parts.experiment, parts.routing, parts.model))

    def trace(rows: int) -> None:
        batch = {
            name: jax.ShapeDtypeStruct((rows, *shape), jax.dtypes.canonicalize_dtype(dtype))
            for name, (shape, dtype) in samples.items()
        }
        # A new function object, since JAX keeps traces by it.
        with fresh_trace():
            jax.eval_shape(lambda *args: function(*args), parts.params, parts.state, batch, dict(parts.device))

    try:
        trace(FACTOR * size)
    except HookError:
        raise
    except Exception:  # the model may be made for one size alone, and is traced at that; its own errors show there
        trace(size)
    parts.outputs_checked = True
