"""From an experiment's logger value to a live logger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, IntegrityError
from nitro_cli.tracking.json_logger import JsonLogger
from nitro_cli.tracking.tee import TeeLogger
from nitro_cli.tracking.verbs import LiveLogger, UserLogger, check_logger

__all__ = ["open_logger"]


def open_logger(
    spec: Any, default_path: str | Path, *, experiment: str | None = None, run_id: str | None = None
) -> LiveLogger | None:
    """Return the live logger of a logger value; nothing is written or contacted before its first verb.

    Args:
        spec: `JSONLogger(...)`, another logger value, `Tee(...)`, a user's own object with the verbs
            it needs, or None.
        default_path: the run's `metrics.jsonl`; other loggers keep their files beside it.
        experiment: the experiment's name, for the project of a tracker; the name of the directory
            above the run's by default.
        run_id: the run's id, for the name in a tracker; the name of the run's directory by default.

    Returns:
        The live logger; None for None. A user's own object is wrapped: `backend` gives it back.

    Raises:
        MissingExtraError: the tracker's library is not installed.
        ConfigError: the user's own object lacks a verb that a run calls.
    """
    from nitro_cli.experiment import (
        JSONLogger,
        MLflowLogger,
        Tee,
        TensorBoardLogger,
        TrackioLogger,
        WandbLogger,
    )

    path = Path(default_path)
    run = path.absolute().parent
    experiment, run_id = experiment or run.parent.name, run_id or run.name
    match spec:
        case None:
            return None
        case JSONLogger():
            return JsonLogger(path, own=True) if spec.path is None else JsonLogger(spec.path)
        case Tee():
            parts = [open_logger(part, path, experiment=experiment, run_id=run_id) for part in spec.loggers]
            if not parts:
                raise ConfigError("Tee has no loggers.", where="logger", fix="give it some, or set the logger to None")
            return TeeLogger(part for part in parts if part is not None)
        case TensorBoardLogger() | MLflowLogger() | WandbLogger() | TrackioLogger():
            return _tracker(spec, run, experiment, run_id)
        case UserLogger() | JsonLogger() | TeeLogger():
            return spec
    check_logger(spec)
    return UserLogger(spec)


def _own_folder(path: Path) -> Path:
    """A directory of the run's own; a link in its place would have the run written elsewhere."""
    if path.is_symlink():
        raise IntegrityError(
            f"{path} is no directory of the run",
            where=str(path),
            why="it is a link, which nitro does not follow here",
            fix="do not use this directory unless you know who made it; else put a plain directory in its place",
        )
    return path


def _tracker(spec: Any, run: Path, experiment: str, run_id: str) -> LiveLogger:
    """Open the adapter of a tracker; importing its module imports nothing of the tracker's yet."""
    match spec.kind:
        case "tensorboard":
            from nitro_cli.tracking.tensorboard import TensorBoardAdapter

            return TensorBoardAdapter(spec.log_dir or _own_folder(run / "tensorboard"))
        case "mlflow":
            from nitro_cli.tracking.mlflow import MLflowAdapter

            name = spec.run_name or run_id
            uri, tags = spec.tracking_uri and os.path.expanduser(spec.tracking_uri), spec.tags
            return MLflowAdapter(spec.experiment or experiment, tracking_uri=uri, run_name=name, tags=tags)
        case "wandb":
            from nitro_cli.tracking.wandb import WandbAdapter

            options = {key: getattr(spec, key) for key in ("entity", "group", "mode", "tags")}
            return WandbAdapter(run, {"project": spec.project or experiment, "name": spec.name or run_id, **options})
        case _:
            from nitro_cli.tracking.trackio import TrackioAdapter

            return TrackioAdapter(spec.project or experiment, name=spec.name or run_id, space_id=spec.space_id)
