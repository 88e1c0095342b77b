"""One process of a run of several: `one_of_several.py FOLDER COORDINATOR PROCESSES INDEX`.

Trains what its tests ask about and writes what it found to `FOLDER/<index>.json`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from nitro_cli import Nitro, NitroError, set_progress_reporter, setup_distributed
from nitro_cli.run import PhaseName, flatten, is_main
from tests.process_data import Augmented, Disagreeing, OwnPart
from tests.tiny import Quick

ROOT, COORDINATOR, PROCESSES, INDEX = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def facts(nitro: Nitro, name: str) -> dict[str, Any]:
    """Where a run got to; its weights go to a file beside."""
    arrays = flatten("params", nitro.params)
    if is_main():
        np.savez(ROOT / f"{name}.npz", **{key.replace("/", "."): array for key, array in arrays.items()})
    everything = b"".join(array.tobytes() for array in jax.tree.leaves(flatten("c", nitro.carry)))
    return {
        "carry": hashlib.sha256(everything).hexdigest(),
        "run": nitro.run_id,
        "step": nitro.step,
        "metrics": nitro.metrics,
        "stop": [nitro.stop_reason, nitro.stop_cause],
        "best": nitro.best and nitro.best["checkpoint"],
        "report": str(nitro.report),
    }


def trained(name: str, kind: type = Quick, **words: Any) -> dict[str, Any]:
    return facts(Nitro(kind(run_dir=ROOT / name, **words)).train(), name)


def stopped_by_the_last() -> dict[str, Any]:
    nitro = Nitro(Quick(run_dir=ROOT / "stopped", max_epochs=50))

    def monitor(phase: Any, step: Any, epoch: Any, info: Any) -> None:
        if INDEX == PROCESSES - 1 and phase.name is PhaseName.TRAINING and epoch == 2:
            nitro.request_stop()

    nitro.register_phase_monitor(monitor)
    return facts(nitro.train(), "stopped")


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
        "two": trained("two"),
        "fsdp": trained("fsdp", sharding="fsdp", width=2048, max_epochs=1),
        "own part": trained("own part", OwnPart, max_epochs=1),
        "augmented": trained("augmented", Augmented, max_epochs=1),
        "stopped": stopped_by_the_last(),
        "resumed": facts(Nitro(Quick(run_dir=ROOT / "one"), resume=("latest", "latest")).train(), "resumed"),
    }
    found["refused"] = refusal(Disagreeing)
    (ROOT / f"{INDEX}.json").write_text(json.dumps(found, default=float))
