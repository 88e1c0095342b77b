"""How metric values combine over a split, and the history of a run. Nothing here imports JAX."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.metrics.accumulate import SplitAccumulator
    from nitro_cli.metrics.history import History
    from nitro_cli.metrics.history_file import history_difference, leading_rows, settled_rows
    from nitro_cli.metrics.reported import RESERVED, check_reported, check_scalar, flatten_scalars
    from nitro_cli.metrics.rows import decode_row, encode_row
    from nitro_cli.metrics.thinning import thin_rows
    from nitro_cli.metrics.values import MODES, Concat, Max, Mean, Min, Sum
