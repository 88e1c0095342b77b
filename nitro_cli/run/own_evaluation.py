"""The hook `evaluate_split`: an evaluation of the experiment's own in the place of a pass over the split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nitro_cli.experiment import Experiment
from nitro_cli.metrics import check_reported
from nitro_cli.run.plan import Plan
from nitro_cli.run.state import RunState, eval_params

__all__ = ["EvaluatedRun", "own_evaluation"]


class EvaluatedRun:
    """What `evaluate_split` gets as its `nitro`: the run as it stands, to be read.

    Args:
        plan: of the run.
        state: what is evaluated; its arrays are valid until the hook returns.
        predict: outputs of a batch or of an iterable of batches.
    """

    def __init__(self, plan: Plan, state: RunState, predict: Callable[[Any, RunState], Any]) -> None:
        self.plan = plan
        self._state = state
        self._predict = predict

    @property
    def experiment(self) -> Experiment:
        """The experiment; Device fields as host arrays, as they are now."""
        return self._state.host_view()

    @property
    def params(self) -> Any:
        """The parameters that evaluation reads, on the device."""
        return eval_params(self.plan.experiment, self._state.train)

    @property
    def state(self) -> Any:
        """The layer state, on the device."""
        return self._state.train.state

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._state.position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress or just ended; 0 before the first."""
        return self._state.position.epoch

    def batches(self, split: str) -> Iterator[dict[str, np.ndarray]]:
        """The batches of a split on the host, in the order of an evaluation pass."""
        with self.plan.splits[split].whole().stream(epoch=0, seed=self.plan.settings.seed, ahead=False) as stream:
            for item in stream:
                yield {name: np.array(value) for name, value in item.host.items()}

    def predict(self, data: Any) -> Any:
        """Outputs in evaluation mode: host arrays for one batch, an iterator for an iterable of batches."""
        return self._predict(data, self._state)


def own_evaluation(
    plan: Plan, state: RunState, predict: Callable[[Any, RunState], Any], split: str
) -> dict[str, Any] | None:
    """What the experiment's `evaluate_split` reports of a split; None where it leaves the split to a pass.

    Args:
        plan: of the run.
        state: what is evaluated.
        predict: outputs of a batch or of an iterable of batches.
        split: the split's name.

    Raises:
        MetricError: what it returned cannot be reported.
    """
    hooks = plan.settings.hooks
    if not hooks.has("evaluate_split"):
        return None
    view = EvaluatedRun(plan, state, predict)
    found: Mapping[str, Any] | None = hooks.call(state.host_view(), "evaluate_split", view, split)
    return None if found is None else check_reported(found, split=split, hook="evaluate_split")
