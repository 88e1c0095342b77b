"""The handle as a program holds it, with what is done with a run once it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.run import Handle, render

if TYPE_CHECKING:
    from nitro_cli.experiment import Experiment
    from nitro_cli.registry import Resolved

__all__ = ["Nitro", "train"]


class Nitro(Handle):
    __doc__ = Handle.__doc__

    def render(
        self,
        batch: Mapping[str, Any] | None = None,
        *,
        split: str = "val",
        batches: int = 1,
        predictions: bool = False,
        out_dir: Path | str | None = None,
        tag: str | None = None,
    ) -> list[Path]:
        """Draw one picture per sample through the hooks `visualize` and `save_figure`.

        Args:
            batch: the batch to draw; None takes the first `batches` batches of `split`.
            split: the split to draw from.
            batches: how many of its batches.
            predictions: hand `visualize` the outputs; otherwise it gets `outputs=None` and nothing is compiled.
            out_dir: where to write; `<run_dir>/viz` when None.
            tag: the start of the file names; the split's name when None, nothing for a batch in hand.

        Returns:
            The paths written, in order.
        """
        predict = self.predict if predictions else None
        return render(self.plan, self.run_state, predict, batch, split=split, batches=batches, out_dir=out_dir, tag=tag)

    def export(self, backend: Any = "bundle", **words: Any) -> Path:
        """Write a servable artefact and return its path; see `nitro_cli.export.export` for the words."""
        from nitro_cli.export import export

        return export(self, backend, **words)


def train(e: Experiment | Resolved, **keywords: Any) -> Nitro:
    """Build a handle and train it: `Nitro(e, **keywords).train()`."""
    return Nitro(e, **keywords).train()
