"""A history as a matplotlib figure."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nitro_cli.errors import ConfigError
from nitro_cli.text import visible

if TYPE_CHECKING:
    from nitro_cli.metrics.epoch_rows import EpochRows

__all__ = ["plot_history"]

_PANEL_INCHES = (6.4, 2.8)


class HistoryFigure(Figure):
    """A figure that a notebook shows as a picture by itself: pyplot, which would arrange it, is not loaded."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def plot_history(history: EpochRows, metrics: str | Iterable[str] | None, x: str) -> Figure:
    """Draw one axis per metric below each other; see `History.plot`."""
    if x not in ("epoch", "step"):
        raise ConfigError(f"A history cannot be drawn over {x!r}.", fix="use x='epoch' or x='step'")
    if not history:
        raise ConfigError("The history has no rows to draw.", fix="train an epoch first")
    names = _panels(history, metrics)
    width, height = _PANEL_INCHES
    figure = HistoryFigure(figsize=(width, height * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        _draw(axis, history, name, x)
    axes[-1].set_xlabel(x)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    if history.title:
        heading = f"{history.title} ({history.place})" if history.place else history.title
        figure.suptitle(visible(heading, keep=""), parse_math=False)
    return figure


def _panels(history: EpochRows, metrics: str | Iterable[str] | None) -> list[str]:
    plain = [n for n in history.columns if n not in ("epoch", "step")]
    if metrics == "all":
        return plain
    if metrics is None:
        monitored = history.monitor[0] if history.monitor is not None else None
        if history.is_selection or monitored not in plain:
            return plain
        return [n for n in ("train_loss", "loss") if n in plain and n != monitored] + [monitored]
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in names:
        history.column(name)
        if name in history.arrays:
            raise ConfigError(f"{name!r} is not a scalar and cannot be drawn as a curve.")
    return names


def _draw(axis: Any, history: EpochRows, name: str, x: str) -> None:
    rows = [row for row in history if name in row]
    axis.plot([row[x] for row in rows], [row[name] for row in rows], marker="." if len(rows) < 50 else None)
    axis.set_ylabel(visible(name, keep=""), parse_math=False)
    axis.grid(alpha=0.3)
    best = history.best
    if best is not None and history.monitor is not None and history.monitor[0] == name and math.isfinite(best[name]):
        axis.plot([best[x]], [best[name]], marker="*", markersize=12, linestyle="none", color="tab:orange")
        axis.set_title(f"best {best[name]:.6g} at epoch {best['epoch']}", fontsize="small", loc="right")
