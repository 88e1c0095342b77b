"""The profiler's trace of a stretch of work, written by the core installation alone."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax

from nitro_cli.errors import ConfigError, StorageError

__all__ = ["Trace"]

_PROFILES = Path("plugins") / "profile"


class Trace:
    """One trace in a directory, where `tensorboard --logdir` finds it and <https://ui.perfetto.dev> opens it.

    Args:
        directory: where to write; earlier traces in it stay.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: tuple[Path, ...] = ()
        self._own: Path | None = None

    def start(self) -> None:
        """Record from here on.

        Raises:
            ConfigError: a profiler is at work in this process already.
        """
        options: Any = jax.profiler.ProfileOptions()
        # The default records every call of a Python function: it slows the host down, and crowds out the rest.
        options.python_tracer_level = 0
        # The profiler names a trace by the second: in one directory a second one would take the place of the first.
        own = Path(tempfile.mkdtemp(prefix=".trace-", dir=self.directory))
        try:
            jax.profiler.start_trace(str(own), profiler_options=options)
        except RuntimeError as error:
            own.rmdir()
            raise ConfigError("no trace can be started", why=str(error), fix="end the other profile first") from error
        self._own = own

    def stop(self) -> None:
        """Write what was recorded; without a start nothing.

        Raises:
            StorageError: it cannot be written, or the profiler recorded nothing.
        """
        own, self._own = self._own, None
        if own is None:
            return
        try:
            jax.profiler.stop_trace()
            self.files = tuple(sorted(file for made in self._moved(own) for file in made.iterdir()))
        except OSError as error:
            raise StorageError("the trace cannot be written", where=str(self.directory), why=str(error)) from error
        finally:
            shutil.rmtree(own, ignore_errors=True)
        if not self.files:
            raise StorageError(
                "the profiler of JAX ended without writing a trace",
                where=str(self.directory),
                why="it reported no error, so that this is neither the disk nor the window",
                fix="profile again",
            )

    def _moved(self, own: Path) -> list[Path]:
        """Put the profiler's directories, one a trace, among those that are there."""
        place = self.directory / _PROFILES
        moved = []
        for made in (own / _PROFILES).glob("*"):
            place.mkdir(parents=True, exist_ok=True)
            names = (made.name if again == 1 else f"{made.name}_{again}" for again in itertools.count(1))
            target = next(place / name for name in names if not (place / name).exists())
            moved.append(made.rename(target))
        return moved
