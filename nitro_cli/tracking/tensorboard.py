"""TensorBoard event files, through tensorboardX."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.installation import import_extra
from nitro_cli.text import json_ready
from nitro_cli.tracking.markdown import confusion_markdown, mapping_markdown
from nitro_cli.tracking.metric_line import finite_metrics
from nitro_cli.tracking.names import TrackerNames, tracker_name

__all__ = ["TensorBoardAdapter"]

_NO_TAG = re.compile(r"[^-/\w.]")


class TensorBoardAdapter:
    """Scalars as `<context>/<metric>`, arrays as histograms, everything else as text.

    On resume the events after the checkpoint's step are purged from TensorBoard's view.

    Args:
        log_dir: where the event files go.
    """

    identity = "tensorboard"
    run_id = None

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._library = import_extra("tensorboardX", use="Logging to TensorBoard", where="logger")
        self._summary = import_extra(
            "tensorboardX.proto.summary_pb2", use="Logging to TensorBoard", where="logger"
        ).Summary
        self._writer: Any = None
        self._step = 0
        self._purge_step: int | None = None
        self._name = TrackerNames("TensorBoard", _histogram_tag)

    @property
    def run_url(self) -> str | None:
        """The directory to point TensorBoard at."""
        return str(self.log_dir)

    @property
    def backend(self) -> Any:
        """The `tensorboardX.SummaryWriter`."""
        if self._writer is None:
            self._writer = self._library.SummaryWriter(str(self.log_dir), purge_step=self._purge_step)
        return self._writer

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write the parameters as a table."""
        self.backend.add_text("params", mapping_markdown(json_ready(params)), self._step)
        self.backend.flush()

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Write scalars and the histograms of arrays, at the step."""
        writer = self.backend
        self._step = max(self._step, step)
        scalars = []
        for name, value in finite_metrics(metrics).items():
            tag = tracker_name(context, name)
            if isinstance(value, bool | int | float):
                scalars.append(self._summary.Value(tag=tag, simple_value=value))
            elif isinstance(value, str):
                writer.add_text(tag, value, step)
            else:
                self._add_histogram(tag, value, step)
        if scalars:
            # One event for all: an event each costs three times as much.
            writer.file_writer.add_summary(self._summary(value=scalars), step)
        if context != "train":
            writer.flush()

    def _add_histogram(self, tag: str, value: Any, step: int) -> None:
        import numpy as np

        entries = np.asarray(value, dtype=np.float64).ravel()
        finite = entries[np.isfinite(entries)]
        if finite.size:
            self.backend.add_histogram(self._name(tag), finite, step)

    def log_other(self, key: str, value: Any) -> None:
        """Write the value as text."""
        text = value if isinstance(value, str) else json.dumps(json_ready(value), ensure_ascii=False)
        self.backend.add_text(key, text, self._step)

    def log_tags(self, tags: Any) -> None:
        """Write the tags as text."""
        self.log_other("tags", tags)

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Write the matrix as a table."""
        self.backend.add_text("confusion", confusion_markdown(matrix, labels), self._step)

    def finish(self, status: str) -> None:
        """Write the status and close the event file."""
        self.log_other("status", status)
        self.backend.close()
        self._writer = None

    def state(self) -> dict[str, Any]:
        """The last step logged."""
        if self._writer is not None:
            self._writer.flush()
        return {"step": self._step, "names": self._name.state()}

    def reattach(self, state: Any) -> None:
        """Continue the event files of the directory after the step of `state`."""
        self._step = int(state["step"])
        self._purge_step = self._step + 1
        self._name.load_state(state.get("names", {}))


def _histogram_tag(tag: str) -> str:
    """The tag as the library writes that of a histogram, alone of all."""
    return _NO_TAG.sub("_", tag).lstrip("/")
