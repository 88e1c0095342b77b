"""The run that is killed, filled and corrupted: seconds to train, with everything in it that a record must carry."""

from __future__ import annotations

from typing import Any

from nitro_cli import EMA, Checkpointer, EarlyStopping
from nitro_cli.experiment import Best, Last
from nitro_cli.optim import Plateau, cosine
from tests.tiny import Quick

__all__ = ["Subject"]


class Subject(Quick):
    """Dropout, layer state, momentum, an average, early stopping, a plateau: all that a resume may get wrong."""

    samples = 40
    max_epochs = 2
    ema = EMA(beta=0.9)
    early_stop = EarlyStopping(patience=50)
    checkpointer = Checkpointer(keep=(Best(1), Last(1)))
    checkpoint_every_n_steps = 4
    nan_from: int = 0
    """The first epoch whose metric is NaN; 0 for none."""

    def schedules(self) -> Any:
        return {"learning_rate": Plateau(cosine(0.1), factor=0.5, patience=0)}

    def finalize_metrics(self, acc: dict[str, Any], split: str) -> dict[str, Any]:
        type(self).validations += 1
        if self.nan_from and type(self).validations >= self.nan_from:
            return {**acc, "acc": float("nan")}
        return dict(acc)


Subject.validations = 0
