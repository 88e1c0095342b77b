"""The per-epoch series of a run, with the forms in which it is shown: a table, a figure, frames, CSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nitro_cli.installation import import_extra
from nitro_cli.metrics.epoch_rows import EpochRows

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["History"]


class History(EpochRows):
    """One row per trained epoch: epoch, step, train_loss, then the metrics of the epoch.

    `h[7]` is the row of epoch 7 and `h[-1]` the last row; `h[10:20]` the epochs 10 to 20, both
    included; `h["acc"]` and `h.acc` the column as an array; `h["acc", "loss"]` and
    `h[10:20, "acc", "loss"]` those metrics only, as a history, which always keeps epoch and step;
    `h.select(step=slice(2000, 6000))` the epochs that closed within those steps.

    Args:
        rows: mappings with `epoch` and `step`, epochs ascending; other values are real scalars or arrays.
        monitor: the metric the run is judged by and its mode, such as `("acc", "max")`.
        title: what ran, for the heading.
        place: where, for the heading.
        note: a line under the table.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """The scalar columns as a pandas frame; raises MissingExtraError without pandas."""
        from nitro_cli.metrics.frames import to_pandas

        frame: pandas.DataFrame = to_pandas(self)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The scalar columns as a polars frame, missing values null; raises MissingExtraError without polars."""
        from nitro_cli.metrics.frames import to_polars

        return to_polars(self)

    def to_arrow(self) -> pyarrow.Table:
        """The scalar columns as an Arrow table, missing values null; raises MissingExtraError without pyarrow."""
        from nitro_cli.metrics.frames import to_arrow

        return to_arrow(self)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the scalar columns as CSV text, and write it to `path` when one is given."""
        from nitro_cli.metrics.frames import to_csv

        return to_csv(self, path)

    def plot(self, metrics: str | Iterable[str] | None = None, *, x: Literal["epoch", "step"] = "epoch") -> Figure:
        """Draw the history with matplotlib, one axis per metric, the best epoch starred.

        Args:
            metrics: one name or several; `"all"` for every scalar column; by default the losses and the
                monitored metric, or every scalar column where nothing is monitored or metrics were selected.
            x: the horizontal axis.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        import_extra("matplotlib.figure", use="History.plot")
        from nitro_cli.metrics.figure import plot_history

        return plot_history(self, metrics, x)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from nitro_cli.metrics.table import render_history

        yield from render_history(self, console, options)

    def _repr_html_(self) -> str:
        from nitro_cli.metrics.table import history_html

        return history_html(self)

    def __repr__(self) -> str:
        from nitro_cli.metrics.table import history_text

        return history_text(self)
