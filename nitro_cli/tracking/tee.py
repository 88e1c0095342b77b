"""Several loggers at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.errors import IncompatibleError
from nitro_cli.text import exception_text
from nitro_cli.tracking.json_logger import JsonLogger
from nitro_cli.tracking.verbs import LiveLogger

__all__ = ["TeeLogger", "files_outside"]


class TeeLogger:
    """Hands every verb to each of several loggers, in their order.

    Args:
        loggers: live loggers, at least one.
    """

    def __init__(self, loggers: Iterable[LiveLogger]) -> None:
        self.loggers = tuple(loggers)

    @property
    def identity(self) -> str:
        """The identities of all."""
        return f"tee({', '.join(part.identity for part in self.loggers)})"

    @property
    def backend(self) -> tuple[Any, ...]:
        """The native objects of all."""
        return tuple(part.backend for part in self.loggers)

    @property
    def run_id(self) -> str | None:
        """The first id there is."""
        return next((part.run_id for part in self.loggers if part.run_id is not None), None)

    @property
    def run_url(self) -> str | None:
        """The first address there is, web pages before files."""
        urls = [part.run_url for part in self.loggers if part.run_url is not None]
        return next((url for url in urls if "://" in url), urls[0] if urls else None)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log to each."""
        for part in self.loggers:
            part.log_params(params)

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Log to each."""
        for part in self.loggers:
            part.log_metrics(metrics, step=step, epoch=epoch, context=context)

    def log_other(self, key: str, value: Any) -> None:
        """Log to each."""
        for part in self.loggers:
            part.log_other(key, value)

    def log_tags(self, tags: Any) -> None:
        """Log to each."""
        for part in self.loggers:
            part.log_tags(tags)

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Log to each."""
        for part in self.loggers:
            part.log_confusion(matrix, labels, epoch=epoch)

    def finish(self, status: str) -> None:
        """Finish each, whatever another one raises; the first error is raised at the end."""
        errors: list[BaseException] = []
        for part in self.loggers:
            try:
                part.finish(status)
            except BaseException as err:
                errors.append(err)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"another logger failed to finish too: {exception_text(other)}")
            raise errors[0]

    def state(self) -> list[Any]:
        """The states of all."""
        return [part.state() for part in self.loggers]

    def reattach(self, state: Any) -> None:
        """Give each its state back."""
        if not isinstance(state, list) or len(state) != len(self.loggers):
            raise IncompatibleError(
                f"The checkpoint's state of {self.identity} does not fit it: {state!r}.", where="logger"
            )
        for part, own in zip(self.loggers, state, strict=True):
            if own is not None:
                part.reattach(own)


def files_outside(logger: LiveLogger | None) -> list[Path]:
    """The JSON Lines files of a logger that are not the run's own: what a resume leaves as it is.

    Args:
        logger: a live logger; those inside a tee are looked at too. None has no files.
    """
    if isinstance(logger, JsonLogger):
        return [] if logger.writer.own else [logger.path]
    parts = logger.loggers if isinstance(logger, TeeLogger) else ()
    return [path for part in parts for path in files_outside(part)]
