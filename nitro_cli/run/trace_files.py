"""The profiler's trace of a stretch of work, written by the core installation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from nitro_cli.errors import ConfigError, StorageError

__all__ = ["Trace"]


class Trace:
    """One trace in a directory, where `tensorboard --logdir` finds it and <https://ui.perfetto.dev> opens it.

    Args:
        directory: where to write; earlier traces in it stay.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: tuple[Path, ...] = ()
        self._running = False
        self._before: set[Path] = set()

    def start(self) -> None:
        """Record from here on.

        Raises:
            ConfigError: a profiler is at work in this process already.
        """
        self._before = self._all()
        options: Any = jax.profiler.ProfileOptions()
        # The default records every call of a Python function: it slows the host down, and crowds out the rest.
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(str(self.directory), profiler_options=options)
        except RuntimeError as error:
            raise ConfigError("no trace can be started", why=str(error), fix="end the other profile first") from error
        self._running = True

    def stop(self) -> None:
        """Write what was recorded; without a start nothing.

        Raises:
            StorageError: it cannot be written.
        """
        if not self._running:
            return
        self._running = False
        try:
            jax.profiler.stop_trace()
        except OSError as error:
            raise StorageError("the trace cannot be written", where=str(self.directory), why=str(error)) from error
        self.files = tuple(sorted(self._all() - self._before))
        if not self.files:
            raise StorageError("the profiler wrote no trace", where=str(self.directory), fix="is the disk full?")

    def _all(self) -> set[Path]:
        return {path for path in (self.directory / "plugins" / "profile").glob("*/*") if path.is_file()}
