"""Which tracker a run writes to, as plain values; the tracking room opens the live logger from one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from .knobs import PartOrOwn
from .protocols import Logger
from .strict_model import StrictModel

__all__ = [
    "JSONLogger",
    "LoggerKnob",
    "MLflowLogger",
    "Tee",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]

LOGGER_METHODS = ("log_params", "log_metrics", "log_other", "finish")
"""What the framework itself calls of a logger."""


class JSONLogger(StrictModel):
    """JSON Lines: one self-describing object per line; without a path `metrics.jsonl` in the run's directory."""

    kind: Literal["json"] = "json"
    path: Path | None = None
    """The file; None is `metrics.jsonl` in the run's directory."""

    def __init__(self, path: Path | str | None = None, **values: Any) -> None:
        super().__init__(path=path, **values)


class TensorBoardLogger(StrictModel):
    """TensorBoard event files (extra `tensorboard`)."""

    kind: Literal["tensorboard"] = "tensorboard"
    log_dir: Path | None = None
    """Where the event files go; None is `tensorboard` in the run's directory."""


class MLflowLogger(StrictModel):
    """An MLflow run (extra `mlflow`)."""

    kind: Literal["mlflow"] = "mlflow"
    experiment: str | None = None
    """The MLflow experiment; None is the name of the experiment class."""
    tracking_uri: str | None = None
    """The tracking server or directory; None is MLflow's own setting."""
    run_name: str | None = None
    """The name shown; None is the run's id."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class WandbLogger(StrictModel):
    """A Weights & Biases run (extra `wandb`)."""

    kind: Literal["wandb"] = "wandb"
    project: str | None = None
    """The project; None is the name of the experiment class."""
    entity: str | None = None
    """The user or team; None is the default of the account."""
    name: str | None = None
    """The name shown; None is the run's id."""
    group: str | None = None
    """The group of runs this one belongs to."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Where it writes; None is the library's own setting."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""


class TrackioLogger(StrictModel):
    """A trackio run (extra `trackio`)."""

    kind: Literal["trackio"] = "trackio"
    project: str | None = None
    """The project; None is the name of the experiment class."""
    name: str | None = None
    """The name shown; None is the run's id."""
    space_id: str | None = None
    """The Hugging Face Space to write to; None writes locally."""


_SINGLE = (JSONLogger, TensorBoardLogger, MLflowLogger, WandbLogger, TrackioLogger)
LoggerPart = Annotated[
    JSONLogger | TensorBoardLogger | MLflowLogger | WandbLogger | TrackioLogger | Logger,
    PartOrOwn(_SINGLE, LOGGER_METHODS, "logger"),
]


class Tee(StrictModel):
    """Several loggers at once: `Tee(a, b)`; in TOML `{ kind = "tee", loggers = [...] }`."""

    kind: Literal["tee"] = "tee"
    loggers: tuple[LoggerPart, ...]
    """The loggers, called in this order."""

    def __init__(self, *several: Any, **values: Any) -> None:
        if several:
            values = {"loggers": several, **values}
        super().__init__(**values)


LoggerKnob = Annotated[
    JSONLogger | TensorBoardLogger | MLflowLogger | WandbLogger | TrackioLogger | Tee | Logger | None,
    PartOrOwn((*_SINGLE, Tee), LOGGER_METHODS, "logger"),
]
"""The type of the `logger` knob."""
