"""How a run begins: the words of a call that are no fields of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.experiment import Average
from nitro_cli.registry import Resolved
from nitro_cli.run.restore import Source

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """The words of one `Nitro(...)` call that are not fields of the experiment: where data and weights come from.

    `given` is the configuration before the call's knobs, `run_dir` where its runs lie, `import_path` where its class is
    found again.
    """

    given: Resolved
    run_dir: Path
    import_path: str
    data: Mapping[str, Any] | None = None
    source: Source | None = None
    w0: Any = "build_model"
    restore_optimizer: bool = False
    restore_best: bool | Average = False
    load_ema: bool = False
