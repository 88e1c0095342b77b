"""From an exception to what the user is told and the exit code."""

from __future__ import annotations

import errno
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from nitro_cli.errors import ExitCode, NitroError, StorageError

__all__ = ["Failure", "classify", "owner_of", "user_frame"]

Kind = Literal["nitro", "user", "internal", "machine"]

_NITRO = Path(__file__).resolve().parents[1]
_LIBRARIES = {
    "absl", "anyio", "click", "equinox", "etils", "filelock", "flax", "grain", "jax", "jaxlib", "jaxtyping",
    "matplotlib", "mlflow", "numpy", "optax", "orbax", "PIL", "pluggy", "pydantic", "pydantic_core", "pytest",
    "_pytest", "rich", "tensorboardX", "tensorstore", "torch", "trackio", "typer", "wandb",
}  # fmt: skip
_STDLIB = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))


@dataclass(frozen=True)
class Failure:
    """An exception, understood.

    Args:
        kind: raised by nitro on purpose, by the user's code, by a defect of nitro, or by the machine (memory, disk).
        code: the exit code.
        error: what, where, why and the fix.
        exception: the exception itself.
    """

    kind: Kind
    code: ExitCode
    error: NitroError
    exception: BaseException


class _Unexpected(NitroError):
    """Raised nowhere: the form an exception of another library takes when it is shown."""


def classify(exception: BaseException) -> Failure:
    """Say what `exception` means for the user."""
    if isinstance(exception, NitroError):
        return Failure("nitro", exception.exit_code, exception, exception)
    machine = _machine(exception)
    if machine is not None:
        return Failure("machine", ExitCode.FAILED, machine, exception)
    name = type(exception).__name__
    text = _first_line(exception)
    frame = user_frame(exception)
    if frame is not None:
        error = _Unexpected(f"{frame.name} raised {name}: {text}", where=f"{frame.filename}:{frame.lineno}")
        return Failure("user", ExitCode.FAILED, error, exception)
    last = _frames(exception)[-1:]
    error = _Unexpected(
        f"nitro failed with {name}: {text}",
        where=f"{last[0].filename}:{last[0].lineno} in {last[0].name}" if last else None,
        why="no code of yours was running: this is a defect in nitro or in a library below it",
        fix="run the same command with --debug and report the traceback",
    )
    return Failure("internal", ExitCode.FAILED, error, exception)


def owner_of(filename: str) -> str | None:
    """Whose frame a file belongs to: `nitro`, a library by name, `python`, or None for the user's own code."""
    if filename.startswith("<"):
        return "python"
    parts = Path(filename).parts
    if _inside_nitro(filename):
        return "nitro"
    if "site-packages" in parts:
        top = parts[len(parts) - parts[::-1].index("site-packages") :]
        package = top[0].removesuffix(".py") if top else ""
        if package in {"jax", "jaxlib"}:
            return "jax"
        return package if package in _LIBRARIES else None
    if filename.startswith(_STDLIB):
        return "python"
    if len(parts) > 1 and parts[-2] == "bin" and parts[-1] == "nitro":
        return "nitro"
    return None


def user_frame(exception: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the user's own code that the exception, or what caused it, passed through."""
    frames = [frame for frame in _frames(exception) if owner_of(frame.filename) is None]
    return frames[-1] if frames else None


def _inside_nitro(filename: str) -> bool:
    try:
        return Path(filename).resolve().is_relative_to(_NITRO)
    except OSError:
        return False


def _frames(exception: BaseException) -> list[traceback.FrameSummary]:
    trace: TracebackType | None = exception.__traceback__
    return list(traceback.extract_tb(trace))


def _first_line(exception: BaseException) -> str:
    lines = str(exception).strip().splitlines()
    return lines[0] if lines else "(no message)"


def _machine(exception: BaseException) -> NitroError | None:
    text = str(exception)
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
    if exception.errno in {errno.EROFS, errno.EACCES, errno.EPERM} and user_frame(exception) is None:
        return StorageError(
            "cannot write here" if exception.errno == errno.EROFS else "permission denied",
            where=place,
            why=_first_line(exception),
            fix="write elsewhere with `--run-dir`, or change the permissions",
        )
    return None
