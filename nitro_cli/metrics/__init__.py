"""How metric values combine over a split, and the history of a run. Nothing here imports JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nitro_cli.metrics.accumulate import SplitAccumulator
    from nitro_cli.metrics.history import History
    from nitro_cli.metrics.reported import (
        RESERVED,
        check_reported,
        check_scalar,
        flatten_metrics,
        flatten_scalars,
        read_scalar,
    )
    from nitro_cli.metrics.rows import decode_row, encode_row
    from nitro_cli.metrics.thinning import thin_rows
    from nitro_cli.metrics.values import MODES, Concat, Max, Mean, Min, Sum

__all__ = [
    "MODES",
    "RESERVED",
    "Concat",
    "History",
    "Max",
    "Mean",
    "Min",
    "SplitAccumulator",
    "Sum",
    "check_reported",
    "check_scalar",
    "decode_row",
    "encode_row",
    "flatten_metrics",
    "flatten_scalars",
    "read_scalar",
    "thin_rows",
]

# Resolved on first use, so that reading a history from disk does not import numpy.
_MODULES = {
    "accumulate": ("SplitAccumulator",),
    "history": ("History",),
    "reported": ("RESERVED", "check_reported", "check_scalar", "flatten_metrics", "flatten_scalars", "read_scalar"),
    "rows": ("decode_row", "encode_row"),
    "thinning": ("thin_rows",),
    "values": ("MODES", "Concat", "Max", "Mean", "Min", "Sum"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
