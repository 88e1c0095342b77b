"""Train metrics that run on the host, outside of the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import HookError
from nitro_cli.experiment import Experiment, Routing
from nitro_cli.programs import Pair, host_metrics

__all__ = ["host_train_metrics"]


def host_train_metrics(
    routing: Routing,
    view: Experiment,
    outputs: Any,
    batches: Sequence[Mapping[str, np.ndarray]],
    taken: Collection[str],
) -> dict[str, Pair]:
    """The train metrics of a step: totals and counts over its micro-batches.

    Args:
        routing: of the hooks.
        view: the experiment for host hooks.
        outputs: of every micro-batch, stacked on a first axis.
        batches: the micro-batches, on the host.
        taken: names the step's line has already.

    Raises:
        HookError, MetricError: the hook returned no mapping of names to numbers, or other names than before.
    """
    outputs = jax.tree.map(np.asarray, outputs)
    found: list[dict[str, Pair]] = []
    for index, batch in enumerate(batches):
        mine = jax.tree.map(lambda leaf, index=index: leaf[index], outputs)
        found.append(host_metrics(routing.call(view, "train_metrics", mine, batch=batch), taken))
        if found[-1].keys() != found[0].keys():
            raise HookError(
                f"`train_metrics` returned {', '.join(found[-1])} for micro-batch {index + 1}, "
                f"{', '.join(found[0])} for the first",
                why="the line of a step has them over its micro-batches",
                fix="return the same names for every batch",
            )
    return {name: (sum(one[name][0] for one in found), sum(one[name][1] for one in found)) for name in found[0]}
