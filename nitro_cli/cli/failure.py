"""From an exception to what the user is told and the exit code."""

from __future__ import annotations

import errno
import functools
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from nitro_cli.errors import ExitCode, NitroError, NotFoundError, StorageError
from nitro_cli.installation import EXTRAS
from nitro_cli.text import message_of

__all__ = ["Failure", "classify", "package_of", "user_frame"]

Kind = Literal["nitro", "user", "library", "internal", "machine"]

_NITRO = Path(__file__).resolve().parents[1]
_STDLIB = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))
_SITES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Failure:
    """An exception, understood.

    Args:
        kind: raised by nitro on purpose, by the user's code, inside the library of an extra, by a defect of nitro, or
            by the machine (memory, disk).
        code: the exit code.
        error: what, where, why and the fix.
        exception: the exception itself.
    """

    kind: Kind
    code: ExitCode
    error: NitroError
    exception: BaseException


_LONGEST_SHOWN = 200


class _Unexpected(NitroError):
    """Raised nowhere: the form an exception of another library takes when it is shown."""


def classify(exception: BaseException) -> Failure:
    """Say what `exception` means for the user."""
    if isinstance(exception, NitroError):
        return Failure("nitro", exception.exit_code, exception, exception)
    machine = _machine(exception)
    if machine is not None:
        return Failure("machine", machine.exit_code, machine, exception)
    raised = _raised_by_user(exception)
    if raised is not None:
        frame = user_frame(raised)
        assert frame is not None
        error = _Unexpected(
            f"{frame.name} raised {type(raised).__name__}: {_first_line(raised)}",
            where=f"{frame.filename}:{frame.lineno}",
        )
        return Failure("user", ExitCode.FAILED, error, exception)
    what = f"{type(exception).__name__}: {_first_line(exception)}"
    frames = _frames(exception)
    library = _extra_called(frames)
    if library is not None:
        error = _Unexpected(
            f"{library} failed with {what}",
            why=f"it was raised inside {library}, which nitro called and does not know the inside of",
            fix=f"see what {library} says of it; --debug shows the traceback",
        )
        return Failure("library", ExitCode.FAILED, error, exception)
    error = _Unexpected(
        f"nitro failed with {what}",
        where=f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None,
        why="no code of yours was running: this is a defect in nitro or in a library below it",
        fix="run the same command with --debug and report the traceback",
    )
    return Failure("internal", ExitCode.FAILED, error, exception)


def package_of(filename: str) -> str | None:
    """Whose frame a file belongs to: `nitro`, a library by its package, `python`, or None for the user's own code.

    Of what is installed, packages that declare experiments are the user's own.
    """
    if filename.startswith("<"):
        return "python"
    parts = Path(filename).parts
    if _inside_nitro(filename):
        return "nitro"
    sites = [index for index, part in enumerate(parts) if part in _SITES]
    if sites:
        top = parts[sites[-1] + 1 :]
        package = top[0].removesuffix(".py") if top else ""
        if package in {"jax", "jaxlib"}:
            return "jax"
        return None if package in _plugin_packages() else package
    if filename.startswith(_STDLIB):
        return "python"
    if len(parts) > 1 and parts[-2] == "bin" and parts[-1] == "nitro":
        return "nitro"
    return None


@functools.cache
def _plugin_packages() -> frozenset[str]:
    from importlib import metadata

    return frozenset(point.module.partition(".")[0] for point in metadata.entry_points(group="nitro.experiments"))


def user_frame(exception: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the user's own code that the exception passed through."""
    frames = [frame for frame in _frames(exception) if package_of(frame.filename) is None]
    return frames[-1] if frames else None


def _raised_by_user(exception: BaseException) -> BaseException | None:
    """The exception, or what caused it, that came out of the user's code.

    Python itself makes a RuntimeError of a StopIteration that leaves a hook inside a generator.
    """
    link: BaseException | None = exception
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if user_frame(link) is not None:
            return link
        seen.add(id(link))
        link = link.__cause__
    return None


def _extra_called(frames: list[traceback.FrameSummary]) -> str | None:
    """The library of an extra that nitro's last frame called, directly or through Python's own modules."""
    owners = [package_of(frame.filename) for frame in frames]
    last = max((index for index, owner in enumerate(owners) if owner == "nitro"), default=-1)
    called = next((owner for owner in owners[last + 1 :] if owner != "python"), None)
    modules = {module for modules in EXTRAS.values() for module in modules}
    return called if called in modules else None


def _inside_nitro(filename: str) -> bool:
    try:
        return Path(filename).resolve().is_relative_to(_NITRO)
    except OSError:
        return False


def _frames(exception: BaseException) -> list[traceback.FrameSummary]:
    trace: TracebackType | None = exception.__traceback__
    return list(traceback.extract_tb(trace))


def _first_line(exception: BaseException) -> str:
    lines = message_of(exception).strip().splitlines()
    return lines[0] if lines else "(no message)"


def _machine(exception: BaseException) -> NitroError | None:
    text = message_of(exception)
    runtime = type(exception).__name__ in {"XlaRuntimeError", "JaxRuntimeError"}
    if isinstance(exception, MemoryError) or (
        runtime and ("RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower())
    ):
        frame = user_frame(exception)
        return _Unexpected(
            "out of memory" + (" on the device" if runtime else ""),
            where=f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else None,
            why=_first_line(exception) if text else None,
            fix="a smaller batch, `--accum N` with a batch N times smaller, or a smaller model",
        )
    if not isinstance(exception, OSError):
        return None
    place = str(exception.filename) if exception.filename is not None else None
    if exception.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageError(
            "the disk is full" if exception.errno == errno.ENOSPC else "the disk quota is used up",
            where=place,
            why=_first_line(exception),
            fix="free space (`nitro checkpoint prune RUN_DIR`), or write elsewhere with `--run-dir`; "
            "what was committed before is whole",
        )
    if exception.errno in {errno.ENAMETOOLONG, errno.ELOOP} and user_frame(exception) is None:
        shown = place if place is None or len(place) <= _LONGEST_SHOWN else f"{place[:_LONGEST_SHOWN]}..."
        return NotFoundError(
            "there can be no file or directory of this name"
            if exception.errno == errno.ENAMETOOLONG
            else "links lead in a circle",
            where=shown,
            why=exception.strerror,
            fix="give another path",
        )
    if exception.errno in {errno.EROFS, errno.EACCES, errno.EPERM} and user_frame(exception) is None:
        return StorageError(
            "cannot write here" if exception.errno == errno.EROFS else "permission denied",
            where=place,
            why=_first_line(exception),
            fix="write elsewhere with `--run-dir`, or change the permissions",
        )
    return None
