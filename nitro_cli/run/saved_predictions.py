"""`save_predictions`: a prediction file of some splits after each so many epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from nitro_cli.errors import ConfigError, NotFoundError, nearest
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

    def on_train_start(self, run: Any) -> None:
        """Refuse splits and fields that are not there before anything is trained."""
        for split in self.splits:
            place = f"callbacks: save_predictions, split {split!r}"
            if split not in run.plan.splits:
                held = tuple(run.plan.splits)
                raise NotFoundError(
                    f"there is no split {split!r}",
                    where=place,
                    why=f"build_data returned: {', '.join(sorted(held))}",
                    nearest=nearest(split, held),
                )
            fields = run.plan.splits[split].fields
            for name in (*self.fields, *(name for name in (self.target, self.ids) if name is not None)):
                if name not in fields:
                    why = f"its batches have: {', '.join(fields)}"
                    raise ConfigError(f"no field {name}", where=place, why=why, nearest=nearest(name, fields))

    def on_epoch_end(self, run: Any, row: Mapping[str, Any]) -> None:
        """Write the files of an epoch that is due."""
        if row["epoch"] % self.every:
            return
        said = {name: getattr(self, name) for name in ("kind", "output", "target", "ids", "labels")}
        for split in self.splits:
            path = run.path / "predictions" / f"{split}-epoch-{row['epoch']:04d}.npz"
            run.write_predictions(path, split, self.fields, **said)
