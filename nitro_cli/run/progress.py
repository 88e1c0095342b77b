"""Telling the outside how far the work is: the reporter contract, notes and the unit counter.

A reporter draws what it is told; it never decides anything. One is active per process: the one that was set, or the
display that suits where a program runs that set none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from nitro_cli.display import reporter_for_scripts
from nitro_cli.errors import ConfigError, warn
from nitro_cli.text import exception_text

__all__ = [
    "Progress",
    "Reporter",
    "progress_counter",
    "progress_note",
    "set_progress_reporter",
]

_VERBS = ("begin", "step", "end", "phase", "note", "line", "done")


@runtime_checkable
class Reporter(Protocol):
    """Draws the progress of a process. Every method must return quickly: `step` is called for every dispatch."""

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch of `total` units starts (0 when unknown): an epoch's training, or one pass over a split."""

    def step(self, n: int, values: Mapping[str, float] | None) -> None:
        """`n` more units of the stretch are finished; `values` are the newest numbers, if any.

        An epoch that a resume goes on with begins with one call, without values, for the steps that were taken before.
        """

    def end(self, values: Mapping[str, Any] | None) -> None:
        """The stretch is over, however it ended; `values` are its results, if it has any."""

    def phase(self, name: str | None) -> None:
        """Work that yields no units starts (`compiling train`) or, with None, is over."""

    def note(self, text: str | None) -> None:
        """What the user's own code says it is doing; None clears it."""

    def line(self, text: str) -> None:
        """One line that must stay readable after the run."""

    def done(self, text: str) -> None:
        """The entry point is over; release the terminal."""


_reporter: Reporter | None = None
_chosen = False
_finished_units = 0
_notes: list[str] = []


def set_progress_reporter(reporter: Reporter | None) -> Reporter | None:
    """Make `reporter` the one that draws from now on, and return the one before it.

    Args:
        reporter: an object with the methods of `Reporter`, or None for no output.

    Raises:
        ConfigError: a method of the contract is missing.
    """
    global _reporter, _chosen
    _chosen = True
    if reporter is not None:
        missing = [verb for verb in _VERBS if not callable(getattr(reporter, verb, None))]
        if missing:
            raise ConfigError(
                f"progress reporter {type(reporter).__name__} lacks the method{'s' * (len(missing) > 1)} "
                + ", ".join(missing),
                fix=f"a reporter has: {', '.join(_VERBS)}",
            )
    previous, _reporter = _reporter, reporter
    return previous


def progress_counter() -> int:
    """Optimizer steps and evaluation batches this process has finished; only its growth means something."""
    return _finished_units


class _Note:
    """A note that is already showing; as a context manager it gives way to the enclosing note at the end."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        _notes.append(self._text)

    def __exit__(self, *exc: object) -> None:
        if _notes:
            _notes.pop()
        Progress.call("note", _notes[-1] if _notes else None)


def progress_note(text: str) -> _Note:
    """Say what a hook is doing (`decoding 3/10`), beside the current phase, until the next phase.

    Used as a context manager, the note lasts for the block and the enclosing one comes back.

    Raises:
        ConfigError: it is no text.
    """
    if not isinstance(text, str):
        raise ConfigError(f"a note of progress is a {type(text).__name__}", fix="give text")
    Progress.call("note", text)
    return _Note(text)


class Progress:
    """How the framework speaks to the reporter: nothing a reporter does can stop a run."""

    @staticmethod
    def call(verb: str, *args: Any) -> None:
        """Pass one event on; a reporter that raises is switched off with a warning."""
        global _reporter, _chosen
        if not _chosen:
            _reporter, _chosen = reporter_for_scripts(), True
        reporter = _reporter
        if reporter is None:
            return
        try:
            getattr(reporter, verb)(*args)
        except Exception as error:
            _reporter = None
            warn(
                f"the progress reporter {type(reporter).__name__} raised {exception_text(error)}; "
                "it is switched off, the run goes on"
            )

    @staticmethod
    def units(n: int, values: Mapping[str, float] | None = None) -> None:
        """`n` more units are finished."""
        global _finished_units
        _finished_units += n
        if _reporter is not None or not _chosen:
            Progress.call("step", n, values)

    @staticmethod
    def clear_notes() -> None:
        """A new phase or stretch makes every note stale."""
        if _notes:
            _notes.clear()
            Progress.call("note", None)

    @staticmethod
    @contextmanager
    def phase(name: str) -> Iterator[None]:
        """A stretch of work without units, named."""
        Progress.clear_notes()
        Progress.call("phase", name)
        try:
            yield
        finally:
            Progress.clear_notes()
            Progress.call("phase", None)
