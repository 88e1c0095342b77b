"""When a run stops: early stopping, time, and requests."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nitro_cli.errors import warn
from nitro_cli.experiment import EarlyStopping
from nitro_cli.metrics import check_scalar

_SIGNAL_SECONDS = 0.5
"""How much later than a worker process the run may learn of a signal to both."""
_PROCESSES = "multiprocessing.popen_fork"
"""The module that every start method loads with the first process."""
_CAUSES = ("", "request", "max_time", "sigusr1", "sigterm", "sigint")

__all__ = ["EarlyStop", "StopRequest"]


class EarlyStop:
    """The live form of `EarlyStopping`: its counters.

    An epoch improves when it beats the best by more than `min_delta`, absolute, as Keras and Lightning count.
    """

    def __init__(self, rule: EarlyStopping, metric: str, mode: str) -> None:
        self.rule = rule
        self.metric = metric
        self.mode = mode
        self.best: float | None = None
        self.wait = 0

    def should_stop(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Count `epoch` and say whether patience is used up; a non-finite metric is an epoch without improvement."""
        value = check_scalar(metrics.get(self.metric), f"early stopping on {self.metric!r}", metrics)
        if self._improves(value):
            self.best = value
            self.wait = 0
        else:
            self.wait += 1
        return self.wait >= self.rule.patience

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.rule.min_delta

    def state(self) -> dict[str, Any]:
        """The counters, for the checkpoint."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best, "wait": self.wait}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's counters; under another metric or mode they start fresh, said."""
        if (state["metric"], state["mode"]) != (self.metric, self.mode):
            warn(
                f"early stopping watched {state['metric']} ({state['mode']}) in the checkpoint and watches "
                f"{self.metric} ({self.mode}) now: its counters start fresh"
            )
            return
        self.best = state["best"]
        self.wait = state["wait"]


class StopRequest:
    """A stop asked for from outside: a signal, the clock, or `request_stop()`. Checked at every step boundary.

    Attributes:
        cause: what asked first; None when nothing did.
        in_haste: whether a signal asked, so that nothing waits for data any more.
        last_step: the optimizer step after which the run stops as if asked to; None for no such step.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        self.last_step: int | None = None
        self._deadline: float | None = None
        self._shared = False
        self._agreed = False
        self.in_haste = False
        self._hurried: list[Callable[[], object]] = []

    def limit(self, seconds: float | None) -> None:
        """Ask for a stop by itself in `seconds` from now; None lifts the limit."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def ask(self, cause: str) -> None:
        """Stop at the next boundary; the first cause is the one reported."""
        if self.cause is None:
            self.cause = cause

    @contextlib.contextmanager
    def hurrying(self, hurry: Callable[[], object]) -> Iterator[None]:
        """While inside, `hurry` is called when a signal asks for a stop, maybe by its handler; at once if one did.

        Where several processes train nothing is hurried: all go on until all know.
        """
        self._hurried.append(hurry)
        try:
            if self.in_haste:
                hurry()
            yield
        finally:
            self._hurried.remove(hurry)

    def hurry(self) -> None:
        """A signal asked for the stop: let what waits for data end its waiting."""
        if not self._shared:
            self.in_haste = True
            for hurry in tuple(self._hurried):
                hurry()

    def explains_failure(self) -> bool:
        """Whether data that failed just now did so because of the stop: worker processes may die of the same signal.

        They may also have been reached a moment earlier, so that where there are such processes this waits a little.
        """
        if self._shared:
            return False
        until = time.monotonic() + (_SIGNAL_SECONDS if _PROCESSES in sys.modules else 0.0)
        while self.cause is None and time.monotonic() < until:
            time.sleep(0.01)
        return self.cause is not None

    def share(self) -> None:
        """Several processes train: stop only once all know, at the same step."""
        self._shared = True

    def wish(self) -> int:
        """What this process asks the others for: the number of its cause, 0 for nothing."""
        self._look_at_clock()
        return 0 if self.cause is None else _CAUSES.index(self.cause if self.cause in _CAUSES else "request")

    def agree(self, wish: int) -> None:
        """All processes have learned of this wish."""
        if wish:
            self.cause, self._agreed = _CAUSES[wish], True

    def pending(self, step: int = 0) -> bool:
        """Whether the run must stop now, after optimizer step `step`."""
        if self.last_step is not None and step >= self.last_step:
            self.ask("request")
        if self._shared:
            return self._agreed
        self._look_at_clock()
        return self.cause is not None

    def _look_at_clock(self) -> None:
        if self.cause is None and self._deadline is not None and time.monotonic() >= self._deadline:
            self.cause = "max_time"
