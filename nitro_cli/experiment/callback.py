"""`Callback`: what watches a run while it trains, and the catalogue that holds such."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from nitro_cli.text import Catalogue

from .kinds import FieldKind
from .part import Part

__all__ = ["CALLBACKS", "Callback", "register_callback"]

CALLBACKS: Catalogue[type[Callback]] = Catalogue(
    "callback",
    "nitro.callbacks",
    key="id",
    shipped={"save_predictions": "nitro_cli.run.saved_predictions:SavePredictions"},
)
"""The callbacks by (id, version): nitro's own, those of `register_callback`, and those of the entry points
`nitro.callbacks`."""


class Callback(Part):
    """Watches a run. A subclass has options as fields, counters in private attributes, and any of the methods below.

    Each handle works on a copy of its own. With `state()` and `load_state(state, version)` it is a component: every
    checkpoint keeps what `state` returns. The `run` that each method gets reads where the run stands, and may ask for a
    stop, log, and set Device fields; it cannot change weights. What a method raises fails the run.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = CALLBACKS
    unmarked: ClassVar[FieldKind] = FieldKind.HOST
    on_host: ClassVar[bool] = True

    everywhere: ClassVar[bool] = False
    """Whether every process of several calls it, not the main one alone; `run.set_device` needs it."""

    every: int = Field(default=1, ge=1)
    """`on_update` comes at every so many optimizer steps that were taken."""

    def on_train_start(self, run: Any) -> None:
        """Before the first step of a `train()`."""

    def on_epoch_start(self, run: Any) -> None:
        """An epoch begins, or a resume goes on with one."""

    def on_update(self, run: Any, event: Any) -> None:
        """An optimizer step was taken; comes one dispatch late, in order, with its numbers in an `UpdateEvent`."""

    def on_evaluate(self, run: Any, split: str, metrics: Mapping[str, Any]) -> None:
        """A split was evaluated at the end of an epoch."""

    def on_epoch_end(self, run: Any, row: Mapping[str, Any]) -> None:
        """An epoch is in the history; its checkpoint is not written yet, and will have the callback's state."""

    def on_checkpoint(self, run: Any, path: Path | None) -> None:
        """A checkpoint is on its way to `path`; None where a checkpointer of one's own keeps it."""

    def on_train_end(self, run: Any, reason: str) -> None:
        """Training ended, for a stop reason or with `error`; the last that started is told first."""

    def has(self, method: str) -> bool:
        """Whether its class writes a method."""
        return getattr(type(self), method) is not getattr(Callback, method)


register_callback = CALLBACKS.register
"""`@register_callback(id, version=1)`: a class decorator that makes a callback known as `{ id = id }`."""
