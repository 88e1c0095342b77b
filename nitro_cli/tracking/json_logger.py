"""The default logger: JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.errors import warn
from nitro_cli.tracking.jsonlines import JsonLinesWriter
from nitro_cli.tracking.metric_line import MetricLines

__all__ = ["JsonLogger"]


class JsonLogger:
    """Writes one self-describing object per line, flushed; opened at the first line, appended to if it exists.

    Lines have a `type`: `params`, `tags`, `metrics` (with `context`, `epoch`, `step`), `other`, `confusion`, `finish`.

    Args:
        path: the file.
        own: whether it is the run's own file, as for `JsonLinesWriter`; a file named by a configuration is not.
    """

    identity = "json"
    run_id = None

    def __init__(self, path: str | Path, *, own: bool = False) -> None:
        self.writer = JsonLinesWriter(path, own=own)
        self._lines = MetricLines()

    @property
    def path(self) -> Path:
        """The file."""
        return self.writer.path

    @property
    def run_url(self) -> str | None:
        """The path, as there is no page to look at."""
        return str(self.path)

    @property
    def backend(self) -> JsonLinesWriter:
        """The writer."""
        return self.writer

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write a `params` line with the parameters beside the type."""
        line = {"type": "params", **{("params.type" if k == "type" else k): v for k, v in params.items()}}
        if "type" in params:
            warn("The field `type` is logged as `params.type`: the lines of the log use the name themselves.")
        self.writer.write(line)

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Write a `metrics` line without the non-finite scalars."""
        self.writer.write_text(self._lines.line(metrics, step=step, epoch=epoch, context=context))

    def log_other(self, key: str, value: Any) -> None:
        """Write an `other` line."""
        self.writer.write({"type": "other", "key": key, "value": value})

    def log_tags(self, tags: Any) -> None:
        """Write a `tags` line."""
        self.writer.write(
            {
                "type": "tags",
                "tags": tags if isinstance(tags, Mapping) else [tags] if isinstance(tags, str) else list(tags),
            }
        )

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Write a `confusion` line; `matrix` is `[classes, classes]`, rows the true classes."""
        self.writer.write({"type": "confusion", "epoch": epoch, "labels": list(labels), "matrix": matrix})

    def finish(self, status: str) -> None:
        """Write the `finish` line and close the file."""
        try:
            self.writer.write({"type": "finish", "status": status})
        finally:
            self.writer.close()

    def state(self) -> None:
        """Nothing: a resumed run appends to the file in its own directory."""
        return None

    def reattach(self, state: Any) -> None:
        """Nothing to do; see `state`."""
