"""`save_predictions`: a prediction file of some splits after each so many epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from nitro_cli.experiment import Callback, register_callback

__all__ = ["SavePredictions"]


@register_callback("save_predictions")
class SavePredictions(Callback):
    """Writes `predictions/<split>-epoch-0005.npz` in the run's directory, which `nitro analyze` reads.

    What the outputs mean is said by the experiment's task, or by the fields here, which win.
    """

    everywhere: ClassVar[bool] = True

    every: int = Field(default=1, ge=1)
    """Epochs between two files."""

    splits: tuple[str, ...] = ("val",)
    """The splits that are predicted."""

    fields: tuple[str, ...] = ()
    """Further fields of the batches that are written, to slice by."""

    kind: Literal["categorical", "bernoulli", "continuous"] | None = None
    """Logits of classes, logits of labels that do not exclude each other, or values."""

    output: str | None = None
    """The output to read, where there are several."""

    target: str | None = None
    """The field of what was to be predicted."""

    ids: str | None = None
    """The field of the names of the samples; positions without one."""

    labels: tuple[str, ...] | None = None
    """The names of the classes, in order."""

    def on_epoch_end(self, run: Any, row: Mapping[str, Any]) -> None:
        """Write the files of an epoch that is due."""
        if row["epoch"] % self.every:
            return
        said = {name: getattr(self, name) for name in ("kind", "output", "target", "ids", "labels")}
        for split in self.splits:
            path = run.path / "predictions" / f"{split}-epoch-{row['epoch']:04d}.npz"
            run.write_predictions(path, split, self.fields, **said)
