"""The words that a handle takes beside the experiment's knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import KNOBS

__all__ = ["CALL_WORDS", "check_knobs", "told_to"]

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
