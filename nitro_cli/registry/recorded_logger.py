"""Where a run's own configuration may send the lines of its log: into the run, unless a person says otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import JSONLogger, MLflowLogger, Tee, TensorBoardLogger
from nitro_cli.registry.origins import OriginKind
from nitro_cli.registry.resolved import Resolved

__all__ = ["check_logger_stays_inside"]


def check_logger_stays_inside(resolved: Resolved, run: Path) -> None:
    """Check that no logger of a recorded configuration writes outside the run's directory.

    A path that the command line gives is the person's own. A continued run cuts and appends to its log files, so a
    path that only the record gives would let a stranger's run change any file.

    Raises:
        ConfigError: one would; its path is named.
    """
    inside = os.path.realpath(run)
    for key, path in _paths(resolved.experiment.logger, "logger"):
        origin = next((resolved.origins[at] for at in _upwards(key) if at in resolved.origins), None)
        if origin is None or origin.kind is not OriginKind.RECORD:
            continue
        real = os.path.realpath(path)
        if os.path.commonpath([real, inside]) != inside:
            raise ConfigError(
                f"the run's configuration writes its log to {path}, outside the run",
                where=f"{origin.place}: {key}",
                why="what only a record names is written inside its run; any other file has to be named by the command",
                fix=f"if the file is yours, name it again: --set '{key}=\"{path}\"'; or --unset {key} to log in the run"
                if "[" not in key
                else "if the files are yours, name the loggers again: --set 'logger={ kind = \"tee\", ... }'",
            )


def _paths(logger: Any, key: str) -> Iterator[tuple[str, str]]:
    match logger:
        case JSONLogger(path=Path() as path):
            yield f"{key}.path", str(path)
        case TensorBoardLogger(log_dir=Path() as path):
            yield f"{key}.log_dir", str(path)
        case MLflowLogger(tracking_uri=str() as uri) if (store := _local(uri)) is not None:
            yield f"{key}.tracking_uri", store
        case Tee():
            for index, part in enumerate(logger.loggers):
                yield from _paths(part, f"{key}.loggers[{index}]")


def _local(uri: str) -> str | None:
    """The path of a tracking store that is a file or folder; None for a server."""
    scheme, separator, rest = uri.partition(":")
    if not separator or os.sep in scheme:
        return uri
    if scheme in ("file", "sqlite"):
        # file:///a/b and sqlite:////a/b are absolute, sqlite:///a/b is relative.
        return os.sep + rest.lstrip("/") if scheme == "file" else rest.removeprefix("///")
    return None


def _upwards(key: str) -> Iterator[str]:
    """A key path and those around it: `logger.loggers[0].path`, `logger.loggers[0]`, `logger.loggers`, `logger`."""
    while key:
        yield key
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
