"""One process of a run of several: `one_of_several.py FOLDER COORDINATOR PROCESSES INDEX`.

Trains what its tests ask about and writes what it found to `FOLDER/<index>.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from nitro_cli import Callback, Nitro, NitroError, set_progress_reporter, setup_distributed
from nitro_cli.distributed import host_array, in_pieces, is_main
from nitro_cli.run import PhaseName, flatten
from tests.process_data import Augmented, Disagreeing, OwnPart, Shelf, Wide, carry_digest
from tests.run.masked import Masked, Told, off_by, rows
from tests.tiny import Quick

ROOT, COORDINATOR, PROCESSES, INDEX = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def facts(nitro: Nitro, name: str) -> dict[str, Any]:
    """Where a run got to; its weights go to a file beside."""
    arrays = flatten("params", nitro.params)
    if is_main():
        np.savez(ROOT / f"{name}.npz", **{key.replace("/", "."): array for key, array in arrays.items()})
    return {
        "carry": carry_digest(nitro),
        "run": nitro.run_id,
        "step": nitro.step,
        "metrics": nitro.metrics,
        "stop": [nitro.stop_reason, nitro.stop_cause],
        "best": nitro.best and nitro.best["checkpoint"],
        "report": str(nitro.report),
    }


def trained(name: str, kind: type = Quick, **words: Any) -> dict[str, Any]:
    return facts(Nitro(kind(run_dir=ROOT / name, **words)).train(), name)


def trained_and_evaluated(name: str) -> dict[str, Any]:
    """A run, and what evaluation says of the split whose batches the processes share while they train."""
    nitro = Nitro(Quick(run_dir=ROOT / name)).train()
    return {**facts(nitro, name), "train split": nitro.evaluate("train")}


def trained_in_pieces(name: str) -> dict[str, Any]:
    """A run that may not bring the pieces of an array together on the host while it trains and saves."""

    def whole_only(leaf: Any) -> np.ndarray:
        assert not in_pieces(leaf)
        return host_array(leaf)

    nitro = Nitro(Wide(run_dir=ROOT / name, max_epochs=1))
    with patch("nitro_cli.run.snapshot.host_array", whole_only):
        nitro.train()
    return facts(nitro, name)


def resumed(root: str, kind: Callable[..., Any], name: str) -> dict[str, Any]:
    nitro = Nitro(kind(run_dir=ROOT / root), resume=("latest", "latest"))
    before = carry_digest(nitro)
    return {**facts(nitro.train(), name), "loaded": before}


def kept_on_a_shelf(name: str, resume: Any = None, **words: Any) -> dict[str, Any]:
    """A run under a checkpointer of its own, and the steps that this process gave it to keep."""
    shelf = Shelf(ROOT / "shelf")
    nitro = Nitro(Quick(run_dir=ROOT / "shelved", checkpointer=shelf, **words), resume=resume).train()
    return {**facts(nitro, name), "saved": shelf.saved}


def stopped_by_the_last() -> dict[str, Any]:
    nitro = Nitro(Quick(run_dir=ROOT / "stopped", max_epochs=50))

    def monitor(phase: Any, step: Any, epoch: Any, info: Any) -> None:
        if INDEX == PROCESSES - 1 and phase.name is PhaseName.TRAINING and epoch == 2:
            nitro.request_stop()

    nitro.register_phase_monitor(monitor)
    return facts(nitro.train(), "stopped")


class OnMain(Callback):
    """Counts updates on the main process, and stops the run there in the second epoch."""

    _updates: int = 0

    def on_update(self, run: Any, event: Any) -> None:
        self._updates += 1
        if event.update == 14:
            run.request_stop()

    def state(self) -> Any:
        return {"updates": self._updates}

    def load_state(self, state: Any, version: int) -> None:
        self._updates = state["updates"]


class Everywhere(Callback):
    """Sets a Device field in every process after the first epoch, once it has predicted there."""

    everywhere = True

    def on_epoch_end(self, run: Any, row: Any) -> None:
        outputs = run.predict({"x": np.ones((4, 6), np.float32)})
        run.set_device(smoothing=0.25 if outputs.shape == (4, 3) else 1.0)


def watched(resume: Any = None) -> dict[str, Any]:
    """A run under callbacks, and what these hold here in the end."""
    saved = {"id": "save_predictions", "kind": "categorical", "target": "y"}
    e = Quick(run_dir=ROOT / "watched", max_epochs=4, callbacks=(OnMain(), Everywhere(), saved))
    nitro = Nitro(e, resume=resume)
    before = nitro.run_state.rules.callbacks[0].state()["updates"]
    nitro.train()
    after = nitro.run_state.rules.callbacks[0].state()["updates"]
    return {**facts(nitro, "watched"), "updates": [before, after], "smoothing": nitro.device_value("smoothing")}


def of_terms(kind: type, count: int, size: int, accum: int) -> float:
    """How far off a step of masked micro-batches is."""
    e = kind(rows=count, batch_size=size, accum=accum, run_dir=ROOT / f"terms{count}.{size}")
    return off_by(Nitro(e).train(), rows(count))


def refusal(kind: type) -> str:
    try:
        Nitro(kind())
    except NitroError as error:
        return str(error)
    return "nothing was refused"


if __name__ == "__main__":
    set_progress_reporter(None)
    setup_distributed(COORDINATOR, PROCESSES, INDEX)
    found = {
        "two": trained_and_evaluated("two"),
        "fsdp": trained_in_pieces("fsdp"),
        "fsdp straight": trained("fsdp straight", Wide),
        "fsdp again": resumed("fsdp", Wide, "fsdp again"),
        "fsdp after one": resumed("wide", Wide, "fsdp after one"),
        "own part": trained("own part", OwnPart, max_epochs=1),
        "augmented": trained("augmented", Augmented, max_epochs=1),
        "own store": kept_on_a_shelf("own store", max_epochs=1),
        "own store again": kept_on_a_shelf("own store again", ("latest", "latest"), max_epochs=2),
        "terms": {
            "one batch": of_terms(Masked, 24, 24, 1),
            "three": of_terms(Masked, 24, 8, 3),
            "a short one": of_terms(Told, 10, 4, 3),
            "one too few": of_terms(Told, 8, 4, 3),
        },
        "stopped": stopped_by_the_last(),
        "watched": watched(),
        "watched again": watched(("latest", "latest")),
        "resumed": resumed("one", Quick, "resumed"),
    }
    found["refused"] = refusal(Disagreeing)
    (ROOT / f"{INDEX}.json").write_text(json.dumps(found, default=float))
