"""How a run begins: the words of a call that are no fields of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nitro_cli.experiment import Average
from nitro_cli.run.restore import Source

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """The words of one `Nitro(...)` call that are not fields of the experiment: where data and weights come from."""

    data: Mapping[str, Any] | None = None
    source: Source | None = None
    w0: Any = "build_model"
    restore_optimizer: bool = False
    restore_best: bool | Average = False
    load_ema: bool = False
    compile_options: Mapping[str, Any] | None = None
