"""Every error a user can meet, with the exit code the command line ends with."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Iterable
from enum import IntEnum
from types import FrameType
from typing import Any

__all__ = [
    "CheckpointNotFoundError",
    "ComponentError",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "ExitCode",
    "ExperimentNotFoundError",
    "FitError",
    "HookError",
    "HostFieldError",
    "IncompatibleError",
    "IntegrityError",
    "LockedError",
    "MetricError",
    "MismatchError",
    "MissingExtraError",
    "NitroError",
    "NitroWarning",
    "NonFiniteOutputError",
    "NotFoundError",
    "OptimizerError",
    "PreprocessingError",
    "PresetError",
    "PresetNotFoundError",
    "ProcessLostError",
    "RoutingError",
    "RunNotFoundError",
    "ScheduleError",
    "SplitError",
    "StoppedError",
    "StorageError",
    "StreamClosedError",
    "nearest",
    "warn",
]


class ExitCode(IntEnum):
    """Exit codes of the `nitro` command; `docs/command-line.md` explains each."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    INCOMPATIBLE = 4
    INTEGRITY = 5
    DIVERGED = 6
    STOPPED = 75
    INTERRUPTED = 130
    TERMINATED = 143


def nearest(name: object, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Return up to `limit` of `candidates` that look like `name`, the closest first; none for what is no text."""
    if not isinstance(name, str):
        return ()
    pool = sorted(set(candidates))
    folded = {c.casefold(): c for c in pool}
    close = difflib.get_close_matches(name.casefold(), folded, n=limit, cutoff=0.55)
    return tuple(folded[c] for c in close)


class NitroWarning(UserWarning):
    """A fallback was taken or something looks wrong; the run goes on."""


def warn(message: str) -> None:
    """Give a NitroWarning at the line of the user's code that led here, as Python and its filters see it.

    That is the innermost frame outside nitro, Python's own library and what is installed; where there is none, as in a
    thread, the innermost one outside nitro.
    """
    frame: FrameType | None = sys._getframe(1)
    outside = None
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if outside is None and not frame.f_code.co_filename.startswith(_NITRO):
            outside = frame
        frame = frame.f_back
    at = frame or outside or sys._getframe(1)
    registry = at.f_globals.setdefault("__warningregistry__", {})
    name = at.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(message, NitroWarning, at.f_code.co_filename, at.f_lineno, name, registry)


_NITRO = os.path.dirname(__file__) + os.sep
_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def _is_users(file: str) -> bool:
    return not file.startswith((_NITRO, *_PYTHON)) and not any(folder in file for folder in _INSTALLED)


class NitroError(Exception):
    """Base of all errors that nitro raises on purpose.

    Args:
        what: what happened, one sentence.
        where: the place: file, key path, hook, split, leaf.
        why: the reason it is refused.
        fix: what to do about it.
        nearest: valid names close to the one given.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        fix: str | None = None,
        nearest: Iterable[str] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        self.nearest = tuple(nearest)

    def __str__(self) -> str:
        lines = [self.what]
        if self.place:
            lines.append(f"  where: {self.place}")
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.nearest:
            lines.append(f"  did you mean: {', '.join(self.nearest)}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    @property
    def place(self) -> str | None:
        """Where it was, unless `what` names that already: nothing is told twice."""
        words = self.what.replace(",", " ").replace(":", " ").split(" ")
        return None if self.where is None or self.where in words else self.where

    def as_json(self) -> dict[str, Any]:
        """The error as a JSON-ready mapping, for `--json`."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
            "nearest": list(self.nearest),
            "exit_code": int(self.exit_code),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.why, self.fix, self.nearest))


def _rebuild(
    cls: type[NitroError],
    what: str,
    where: str | None,
    why: str | None,
    fix: str | None,
    close: tuple[str, ...],
) -> NitroError:
    return cls(what, where=where, why=why, fix=fix, nearest=close)


class ConfigError(NitroError):
    """A field, a knob or an option has a value that cannot be used."""

    exit_code = ExitCode.USAGE


class PresetError(ConfigError):
    """A preset file does not fit its experiment; all problems of the file are listed."""


class HostFieldError(ConfigError):
    """Traced code read a Host field."""


class RoutingError(ConfigError):
    """A hook asks for a batch field that the batch does not have."""


class ScheduleError(ConfigError):
    """A schedule's key, kind or parameters are wrong."""


class DataError(ConfigError):
    """A split or a batch breaks the contract of data sources."""


class SplitError(DataError):
    """A split cannot be planned, or a saved one does not fit the rows that it is applied to."""


class PreprocessingError(DataError):
    """A table cannot be standardized, or does not fit what was fitted."""


class NonFiniteOutputError(DataError):
    """An output is NaN or infinite, and so has no probability."""


class MissingExtraError(ConfigError):
    """An optional feature was asked for whose packages are not installed."""


class HookError(NitroError):
    """A user's hook returned something it must not."""


class OptimizerError(HookError):
    """The optimizer, its groups, decay or anchors, as the hooks give them, are wrong."""


class MetricError(HookError):
    """A metric is missing, is not a real number, or has no way to combine."""


class FitError(NitroError):
    """A calibrator or a threshold was asked for that the data does not give; the reason says why."""


class StreamClosedError(NitroError):
    """A stream of predictions was asked for more after it was closed or consumed."""


class ProcessLostError(NitroError):
    """Another process of the run died, fell silent, or ended with an error."""


class StoppedError(NitroError):
    """A signal stopped work that leaves nothing to go on from."""

    exit_code = ExitCode.TERMINATED


class StorageError(NitroError):
    """The disk is full, read-only, or failing."""


class NotFoundError(NitroError):
    """Something named does not exist."""

    exit_code = ExitCode.NOT_FOUND


class ExperimentNotFoundError(NotFoundError):
    """No experiment has this name."""


class PresetNotFoundError(NotFoundError):
    """The experiment has no preset of this name."""


class RunNotFoundError(NotFoundError):
    """The directory holds no such run."""


class CheckpointNotFoundError(NotFoundError):
    """The run holds no such checkpoint."""


class IncompatibleError(NitroError):
    """A resume, weights source or export target does not fit."""

    exit_code = ExitCode.INCOMPATIBLE


class MismatchError(IncompatibleError):
    """A calibrator or a policy is of another model, other labels or other probabilities."""


class LockedError(IncompatibleError):
    """Another process holds the run."""


class ComponentError(IncompatibleError):
    """The components of a run and those in a checkpoint differ, or one does not take its state back."""


class IntegrityError(NitroError):
    """A file is not what was written: another size or digest."""

    exit_code = ExitCode.INTEGRITY


class DivergenceError(NitroError):
    """The loss or a gradient is not finite."""

    exit_code = ExitCode.DIVERGED
