"""Where a run stands: what changes while it trains."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Experiment
from nitro_cli.metrics import History
from nitro_cli.programs import TrainState
from nitro_cli.run.device_fields import DeviceFields
from nitro_cli.run.position import Position
from nitro_cli.run.rules import Rules

__all__ = ["RunState", "eval_params"]


class RunState(NamedTuple):
    """A run between two steps.

    Attributes:
        train: parameters, layer state, optimizer state, average, on the device.
        position: how far the run is.
        device: the Device fields, which a live run may be given new values of.
        rules: the counters of stop rule and plateaus.
        history: a row per epoch.
    """

    train: TrainState
    position: Position
    device: DeviceFields
    rules: Rules
    history: History

    def at(self, train: TrainState, position: Position) -> RunState:
        """The same run, further on."""
        return RunState(train, position, self.device, self.rules, self.history)

    def closed(self) -> RunState:
        """The same, its epoch validated and recorded."""
        return self._replace(position=self.position._replace(closed=True))

    def device_now(self) -> dict[str, jax.Array]:
        """The Device fields, scheduled ones at the step that the weights in hand are of."""
        return self.device.at(self.position.read_step)

    def host_view(self) -> Experiment:
        """The experiment for host hooks: Device fields as host arrays, everything else as it is."""
        return self.device.host_view(self.position.read_step)


def eval_params(e: Experiment, train: TrainState) -> Any:
    """The parameters that evaluation reads: the EMA where there is one, unless `eval_weights` is `raw`.

    Raises:
        ConfigError: the EMA is asked for, and the run keeps none.
    """
    if e.eval_weights == "ema" and train.ema is None:
        raise ConfigError('eval_weights = "ema", but the run keeps no EMA', fix='set ema, or eval_weights = "raw"')
    if train.ema is None or e.eval_weights == "raw":
        return train.params
    # Kept in float32, read in the precision that the model is written for.
    return jax.tree.map(
        lambda mean, weight: mean if mean.dtype == weight.dtype else mean.astype(weight.dtype), train.ema, train.params
    )
