"""The contestants of the comparison, by the name shown in the tables."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .jobs import JOBS, Job
from .watch import Epoch, Watch

__all__ = ["CONTESTANTS", "JOBS", "REFERENCE", "Contestant", "Epoch", "Job", "Watch"]

Run = Callable[[Job, dict[str, np.ndarray], int, Watch], None]
REFERENCE = "by hand"


@dataclass(frozen=True)
class Contestant:
    """One way to do the jobs.

    Attributes:
        name: as in the tables.
        module: the module beside this one that holds it.
        run: the function in it: `(job, data, epochs, watch)`, training from the start and telling the watch.
        needs: packages that have to be installed.
        skips: jobs it is not given, with the reason.
    """

    name: str
    module: str
    run: str
    needs: tuple[str, ...] = ()
    skips: dict[str, str] = field(default_factory=dict)

    def absent(self, job: Job) -> str | None:
        """Why it does not take part, if it does not."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        return self.skips.get(job.name)

    def load(self) -> Run:
        """Import what it needs."""
        return getattr(importlib.import_module(f".{self.module}", __name__), self.run)


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(REFERENCE, "by_hand", "streamed"),
        Contestant("by hand again", "by_hand", "streamed"),
        Contestant("by hand, resident", "by_hand", "resident"),
        Contestant(
            "limit: one scan",
            "by_hand",
            "limit",
            skips={"cnn": "a convolution in a scan runs about ten times slower on XLA:CPU"},
        ),
        Contestant("nitro, resident", "with_nitro", "resident"),
        Contestant("nitro, streamed", "with_nitro", "streamed"),
        Contestant("flax nnx.jit", "with_flax", "plain", ("flax",)),
        Contestant("flax cached_partial", "with_flax", "cached", ("flax",)),
        Contestant("keras on jax", "with_keras", "fit", ("keras",)),
        Contestant("pytorch", "with_torch", "loop", ("torch",)),
        Contestant("lightning", "with_lightning", "fit", ("torch", "lightning")),
    )
}
