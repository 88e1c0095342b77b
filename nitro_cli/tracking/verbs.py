"""What a logger is: its verbs, and the checks on a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from nitro_cli.errors import ConfigError, IncompatibleError
from nitro_cli.tracking.metric_line import finite_metrics

__all__ = ["REQUIRED_VERBS", "LiveLogger", "UserLogger", "check_logger", "logger_identity", "reattach_logger"]

REQUIRED_VERBS = ("log_params", "log_metrics", "log_other", "finish")
"""The verbs a run calls by itself."""

_OPTIONAL_VERBS = ("log_tags", "log_confusion", "run_id", "run_url", "state", "reattach")


@runtime_checkable
class LiveLogger(Protocol):
    """A logger that is open. A user's own object needs only the verbs that get called."""

    @property
    def identity(self) -> str:
        """The type of logger, as a checkpoint records it."""

    @property
    def backend(self) -> Any:
        """The native object, for calls these verbs do not cover."""

    @property
    def run_id(self) -> str | None:
        """The id of the logged run, None without one."""

    @property
    def run_url(self) -> str | None:
        """Where to look at the logged run, None if nowhere."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log the run's configuration, flat; called before the first compile."""

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Log metrics; `context` is "train", "validate" or "data"."""

    def log_other(self, key: str, value: Any) -> None:
        """Log one free-form value."""

    def log_tags(self, tags: Any) -> None:
        """Tag the run."""

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Log a confusion matrix `[classes, classes]`, rows the true classes."""

    def finish(self, status: str) -> None:
        """Close the logged run; `status` is the stop reason: completed, early_stop, requested or error."""

    def state(self) -> Any:
        """JSON-ready values a resumed run needs to continue this logged run; None for nothing."""

    def reattach(self, state: Any) -> None:
        """Continue the logged run that `state` names; called before anything is logged."""


class UserLogger:
    """A user's own logger behind the full set of verbs; a missing verb that is called is an error.

    Args:
        logger: any object with the verbs it needs.
    """

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self.identity = _type_name(logger)
        log_metrics = getattr(logger, "log_metrics", None)
        self._log_metrics = log_metrics if callable(log_metrics) else None

    @property
    def backend(self) -> Any:
        """The user's object, or its own `backend`."""
        return getattr(self.logger, "backend", self.logger)

    @property
    def run_id(self) -> str | None:
        """The object's `run_id`, an attribute or a method; None without one."""
        return self._read("run_id")

    @property
    def run_url(self) -> str | None:
        """The object's `run_url`, an attribute or a method; None without one."""
        return self._read("run_url")

    def _read(self, name: str) -> Any:
        value = getattr(self.logger, name, None)
        return value() if callable(value) else value

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Call the verb of the object."""
        self._verb("log_params")(params)

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Call the verb of the object without the non-finite scalars."""
        verb = self._log_metrics or self._verb("log_metrics")
        verb(finite_metrics(metrics), step=step, epoch=epoch, context=context)

    def log_other(self, key: str, value: Any) -> None:
        """Call the verb of the object."""
        self._verb("log_other")(key, value)

    def log_tags(self, tags: Any) -> None:
        """Call the verb of the object."""
        self._verb("log_tags")(tags)

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Call the verb of the object."""
        self._verb("log_confusion")(matrix, labels, epoch=epoch)

    def finish(self, status: str) -> None:
        """Call the verb of the object."""
        self._verb("finish")(status)

    def state(self) -> Any:
        """The object's state, None if it has none."""
        return self._verb("state")() if hasattr(self.logger, "state") else None

    def reattach(self, state: Any) -> None:
        """Call the verb of the object."""
        self._verb("reattach")(state)

    def _verb(self, name: str) -> Any:
        verb = getattr(self.logger, name, None)
        if not callable(verb):
            raise ConfigError(
                f"The logger {self.identity} has no `{name}`, which was called.",
                why="a verb that is missing would drop what it was to log",
                fix=f"define `{name}` on it; `pass` is a body too",
            )
        return verb


def check_logger(logger: Any) -> None:
    """Check at setup that a user's logger has the verbs a run calls.

    Raises:
        ConfigError: naming the missing verbs.
    """
    missing = [v for v in REQUIRED_VERBS if not callable(getattr(logger, v, None))]
    if hasattr(logger, "state") and not callable(getattr(logger, "reattach", None)):
        missing.append("reattach")
    if missing:
        raise ConfigError(
            f"The logger {_type_name(logger)} lacks {', '.join(f'`{v}`' for v in missing)}.",
            where="logger",
            why=(
                "a logger with `state` needs `reattach` to continue from it"
                if missing == ["reattach"]
                else "a run calls these verbs by itself"
            ),
            fix=f"define them; optional are {', '.join(f'`{v}`' for v in _OPTIONAL_VERBS)}",
        )


def logger_identity(logger: Any) -> str | None:
    """Return the type of a logger as a checkpoint records it: `json`, `mlflow`, `tee(json, mlflow)`, `package.Class`.

    Args:
        logger: a live logger, a logger value object of an experiment, a user's own object, or None.
    """
    if logger is None:
        return None
    identity = getattr(logger, "identity", None)
    if isinstance(identity, str):
        return identity
    kind = getattr(logger, "kind", None)
    if kind == "tee":
        return f"tee({', '.join(str(logger_identity(part)) for part in logger.loggers)})"
    if isinstance(kind, str) and type(logger).__module__.startswith("nitro_cli."):
        return kind
    return _type_name(logger)


def reattach_logger(logger: LiveLogger | None, identity: str | None, state: Any) -> None:
    """Continue a logged run on resume, before anything is logged.

    Args:
        logger: the live logger of the resumed run, None when logging is off.
        identity: the `logger_identity` in the checkpoint, None when logging was off.
        state: the logger's `state()` in the checkpoint.

    Raises:
        IncompatibleError: the checkpoint was logged by another type of logger.
    """
    if logger is None or identity is None:
        return
    if logger.identity != identity:
        raise IncompatibleError(
            f"The run was logged by {identity}; it cannot be continued by {logger.identity}.",
            where="logger",
            why="the lines of one run would be in two places",
            fix=f"resume with {identity}, or start a new run with weights= of this one",
        )
    if state is not None:
        logger.reattach(state)


def _type_name(logger: Any) -> str:
    return f"{type(logger).__module__}.{type(logger).__qualname__}"
