"""The words that a handle takes beside the experiment's knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import KNOBS

__all__ = ["CALL_WORDS", "check_knobs"]

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
