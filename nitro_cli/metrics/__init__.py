"""How metric values combine over a split, and the history of a run. Nothing here imports JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from nitro_cli.metrics.accumulate import SplitAccumulator
    from nitro_cli.metrics.history import History
    from nitro_cli.metrics.history_file import history_difference, leading_rows, settled_rows
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
    "history_difference",
    "leading_rows",
    "read_scalar",
    "settled_rows",
    "thin_rows",
]

# Resolved on first use, so that reading a history from disk does not import numpy.

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "accumulate": "SplitAccumulator",
        "history": "History",
        "history_file": "history_difference leading_rows settled_rows",
        "reported": "RESERVED check_reported check_scalar flatten_metrics flatten_scalars read_scalar",
        "rows": "decode_row encode_row",
        "thinning": "thin_rows",
        "values": "MODES Concat Max Mean Min Sum",
    },
)
