"""How a run begins: the words of a call that are no fields of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import KNOBS, Average
from nitro_cli.registry import Resolved
from nitro_cli.run.restore import Source

__all__ = ["CALL_WORDS", "Start", "check_knobs", "told_to"]

CALL_WORDS = (
    "data",
    "weights",
    "resume",
    "w0",
    "restore_optimizer",
    "restore_best",
    "load_ema",
    "schedules",
    "compile_options",
    "run_ref",
)


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


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse keywords that no knob and no word of a handle is called by."""
    unknown = [name for name in knobs if name not in KNOBS]
    if unknown:
        known = (*KNOBS, *CALL_WORDS)
        raise ConfigError(
            f"Nitro has no keyword {', '.join(map(repr, unknown))}",
            nearest=nearest(unknown[0], known),
            fix="fields of the experiment are given to the experiment: Nitro(MyExp(width=256))",
        )


def told_to(run_ref: Any) -> Callable[[Any], object]:
    """What hands a new handle to whoever waits for it.

    Raises:
        ConfigError: `run_ref` can neither be called nor appended to.
    """
    if run_ref is None:
        return lambda handle: None
    if callable(run_ref):
        told: Callable[[Any], object] = run_ref
        return told
    if isinstance(run_ref, list):
        return run_ref.append
    raise ConfigError(
        f"run_ref is {type(run_ref).__name__}",
        why="the handle is given to it once it is built",
        fix="give a list, to which it is appended, or a function, which is called with it",
    )
