"""Weights & Biases runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.installation import import_extra
from nitro_cli.text import json_ready
from nitro_cli.tracking.metric_line import finite_metrics
from nitro_cli.tracking.names import tracker_name

__all__ = ["WandbAdapter"]


class WandbAdapter:
    """Metrics as `<context>/<metric>` over the axis `step`, parameters in the run's config.

    Args:
        directory: where the library keeps its files.
        options: `project`, `entity`, `name`, `group`, `mode`, `tags` as `wandb.init` takes them.
    """

    identity = "wandb"

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        self._library = import_extra("wandb", use="Logging to Weights & Biases", where="logger")
        self._directory = directory
        self._options = {k: v for k, v in options.items() if v not in (None, ())}
        self._id: str | None = None
        self._run: Any = None

    @property
    def backend(self) -> Any:
        """The `wandb.Run`, started on first use."""
        if self._run is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # A run of its own beside any the user's code has started.
            self._run = self._library.init(
                dir=str(self._directory),
                id=self._id,
                resume="allow" if self._id else None,
                reinit="create_new",
                # Its capture of the terminal would log every redraw of the progress display.
                settings=self._library.Settings(console="off"),
                **self._options,
            )
            self._id = self._run.id
            # The library's own step may never go back, and a resumed run does.
            self._run.define_metric("*", step_metric="step")
        return self._run

    @property
    def run_id(self) -> str | None:
        """The id of the run, None before anything is logged."""
        return self._id

    @property
    def run_url(self) -> str | None:
        """The page of the run; None offline."""
        return self._run.url if self._run is not None else None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Put the parameters into the run's config."""
        self.backend.config.update(json_ready(params), allow_val_change=True)

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Log one row: scalars as they are, arrays as histograms."""
        row: dict[str, Any] = {"step": step, "epoch": epoch}
        for name, value in finite_metrics(metrics).items():
            plain = isinstance(value, bool | int | float | str)
            row[tracker_name(context, name)] = value if plain else self._histogram(value)
        self.backend.log(row)

    def _histogram(self, value: Any) -> Any:
        import numpy as np

        entries = np.asarray(value, dtype=np.float64).ravel()
        finite = entries[np.isfinite(entries)]
        return self._library.Histogram(finite) if finite.size else None

    def log_other(self, key: str, value: Any) -> None:
        """Put the value into the run's summary."""
        self.backend.summary[key] = json_ready(value)

    def log_tags(self, tags: Any) -> None:
        """Add tags to the run; a mapping as `name:value`."""
        named = (
            [f"{k}:{v}" for k, v in tags.items()]
            if isinstance(tags, Mapping)
            else [tags]
            if isinstance(tags, str)
            else tags
        )
        self.backend.tags = (*(self.backend.tags or ()), *map(str, named))

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Log the matrix as a table of actual, predicted and count."""
        rows = matrix.tolist() if hasattr(matrix, "tolist") else matrix
        data = [
            [str(a), str(p), n] for a, row in zip(labels, rows, strict=True) for p, n in zip(labels, row, strict=True)
        ]
        table = self._library.Table(columns=["actual", "predicted", "count"], data=data)
        self.backend.log({"confusion": table, "epoch": epoch})

    def finish(self, status: str) -> None:
        """Record the status and end the run."""
        self.backend.summary["status"] = status
        self.backend.finish(exit_code=1 if status == "error" else 0)
        self._run = None

    def state(self) -> dict[str, Any]:
        """The run's id."""
        return {"run_id": self.backend.id}

    def reattach(self, state: Any) -> None:
        """Continue the run of this id."""
        self._id = str(state["run_id"])
