"""trackio runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nitro_cli.installation import import_extra
from nitro_cli.text import json_ready
from nitro_cli.tracking.metric_line import finite_metrics
from nitro_cli.tracking.names import tracker_name

__all__ = ["TrackioAdapter"]


class TrackioAdapter:
    """Metrics as `<context>/<metric>` at their step, parameters as the run's config.

    Args:
        project: the project.
        name: the run's name; a run is continued by it.
        space_id: the Hugging Face Space to write to; None writes locally.
    """

    identity = "trackio"

    def __init__(self, project: str, *, name: str, space_id: str | None = None) -> None:
        self._library = import_extra("trackio", use="Logging to trackio", where="logger")
        self.project = project
        self.name = name
        self._space_id = space_id
        self._resume = "never"
        self._config: dict[str, Any] = {}
        self._run: Any = None
        self._step = 0

    @property
    def backend(self) -> Any:
        """The `trackio.Run`, started on first use."""
        if self._run is None:
            # The library prints, and standard output is for the command's own data.
            with contextlib.redirect_stdout(sys.stderr):
                self._run = self._library.init(
                    project=self.project,
                    name=self.name,
                    space_id=self._space_id,
                    config=self._config,
                    resume=self._resume,
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        return self._run

    @property
    def run_id(self) -> str | None:
        """The run's id, None before anything is logged."""
        return None if self._run is None else str(self._run.id)

    @property
    def run_url(self) -> str | None:
        """The page of the Space; None locally."""
        return f"https://huggingface.co/spaces/{self._space_id}" if self._space_id else None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Give the parameters as the run's config, which trackio takes when a run starts."""
        # Names that begin with an underscore are trackio's own.
        plain = {f"param{k}" if k.startswith("_") else k: v for k, v in json_ready(params).items()}
        if self._run is None:
            self._config = plain
            self.backend.log({}, step=self._step)
        else:
            self.log_other("params", plain)

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Log one row: scalars as they are, arrays as histograms."""
        self._step = max(self._step, step)
        row: dict[str, Any] = {"epoch": epoch}
        for name, value in finite_metrics(metrics).items():
            plain = isinstance(value, bool | int | float | str)
            row[tracker_name(context, name)] = value if plain else self._histogram(value)
        self.backend.log(row, step=step)

    def _histogram(self, value: Any) -> Any:
        import numpy as np

        entries = np.asarray(value, dtype=np.float64).ravel()
        finite = entries[np.isfinite(entries)]
        return self._library.Histogram(finite) if finite.size else None

    def log_other(self, key: str, value: Any) -> None:
        """Log the value at the current step: text as Markdown, other things as JSON."""
        shown = self._library.Markdown(value) if isinstance(value, str) else json_ready(value)
        self.backend.log({f"other/{key}": shown}, step=self._step)

    def log_tags(self, tags: Any) -> None:
        """Log the tags as a value; trackio has none of its own."""
        self.log_other("tags", tags if isinstance(tags, str | Mapping) else list(tags))

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Log the matrix as a table, rows the true classes."""
        rows = matrix.tolist() if hasattr(matrix, "tolist") else matrix
        data = [[str(label), *row] for label, row in zip(labels, rows, strict=True)]
        table = self._library.Table(columns=["actual", *map(str, labels)], data=data)
        self.backend.log({"confusion": table, "epoch": epoch}, step=self._step)

    def finish(self, status: str) -> None:
        """Record the status and wait until everything is written."""
        self.log_other("status", status)
        with contextlib.redirect_stdout(sys.stderr):
            self.backend.finish()
        self._run = None
        self._resume = "allow"

    def state(self) -> dict[str, Any]:
        """The project, the run's name and the last step."""
        return {"project": self.project, "name": self.name, "step": self._step}

    def reattach(self, state: Any) -> None:
        """Continue the run of this name."""
        self.project, self.name, self._step = str(state["project"]), str(state["name"]), int(state["step"])
        self._resume = "allow"
