"""The handle as a program holds it, with what is done with a run once it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.run import Handle

if TYPE_CHECKING:
    from nitro_cli.experiment import Experiment
    from nitro_cli.registry import Resolved

__all__ = ["Nitro", "train"]


class Nitro(Handle):
    __doc__ = Handle.__doc__

    def export(self, backend: Any = "bundle", **words: Any) -> Path:
        """Write a servable artefact and return its path; see `nitro_cli.export.export` for the words."""
        from nitro_cli.export import export

        return export(self, backend, **words)


def train(e: Experiment | Resolved, **keywords: Any) -> Nitro:
    """Build a handle and train it: `Nitro(e, **keywords).train()`."""
    return Nitro(e, **keywords).train()
