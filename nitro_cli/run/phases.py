"""The phases of a run, and the monitors that are told of every transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nitro_cli.errors import ConfigError, warn
from nitro_cli.text import exception_text

__all__ = ["Phase", "PhaseName", "PhaseState", "register_phase_monitor", "unregister_phase_monitor"]

PhaseMonitor = Callable[["Phase", int | None, int | None, Mapping[str, Any]], None]


class PhaseName(StrEnum):
    """What a run can be doing."""

    STARTING = "Starting"
    COMPILING = "Compiling"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    CHECKPOINTING = "Checkpointing"
    DONE = "Done"
    FAILED = "Failed"
    IDLE = "Idle"


@dataclass(frozen=True)
class Phase:
    """One phase; `program` names what is being compiled (train, eval, metrics, export) and is empty elsewhere."""

    name: PhaseName
    program: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.program}".rstrip()


@dataclass(eq=False)
class MonitorHandle:
    """What `register_phase_monitor` returns: pass it to `unregister_phase_monitor`."""

    monitor: PhaseMonitor
    registry: list[MonitorHandle]
    warned: bool = False


_module_monitors: list[MonitorHandle] = []


def register_phase_monitor(monitor: PhaseMonitor) -> MonitorHandle:
    """Call `monitor(phase, step, epoch, info)` on every phase transition of every handle of this process.

    `step` and `epoch` are None until the first epoch begins. `info` holds `nitro` (None during setup), `logger`,
    `is_main` and, when leaving `Evaluating`, `metrics`. A monitor that raises is warned about once; the run goes on.

    Raises:
        ConfigError: `monitor` cannot be called.
    """
    handle = MonitorHandle(_callable(monitor), _module_monitors)
    _module_monitors.append(handle)
    return handle


def _callable(monitor: Any) -> PhaseMonitor:
    if not callable(monitor):
        raise ConfigError(
            f"the phase monitor is {type(monitor).__name__}, which cannot be called",
            fix="give a function of (phase, step, epoch, info), or define `__call__`",
        )
    called: PhaseMonitor = monitor
    return called


def unregister_phase_monitor(handle: MonitorHandle) -> None:
    """Stop calling the monitor behind `handle`; doing it twice is no error.

    Raises:
        ConfigError: `handle` is not what `register_phase_monitor` returned.
    """
    if not isinstance(handle, MonitorHandle):
        fix = "give what register_phase_monitor returned"
        raise ConfigError(f"{handle!r:.60} is no handle of a phase monitor", fix=fix)
    if handle in handle.registry:
        handle.registry.remove(handle)


class PhaseState:
    """The current phase of one handle, and those who want to know.

    Args:
        facts: asked at every transition: the step and the epoch, None before the first epoch begins, and the `info` of
            the monitors.
    """

    def __init__(self, facts: Callable[[], tuple[int | None, int | None, Mapping[str, Any]]]) -> None:
        self.current = Phase(PhaseName.STARTING)
        self.monitors: list[MonitorHandle] = []
        self._facts = facts
        self._metrics: Mapping[str, Any] | None = None

    def register(self, monitor: PhaseMonitor) -> MonitorHandle:
        """Add a monitor for this handle alone."""
        handle = MonitorHandle(_callable(monitor), self.monitors)
        self.monitors.append(handle)
        return handle

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """The monitors are given these metrics when `Evaluating` is left."""
        self._metrics = metrics

    def set(self, phase: Phase) -> None:
        """Record `phase` and tell every monitor; the phase that already holds is no transition."""
        extra: dict[str, Any] = {}
        if phase.name not in (PhaseName.EVALUATING, PhaseName.COMPILING) and self._metrics is not None:
            extra["metrics"], self._metrics = self._metrics, None
        if phase == self.current and phase.name is not PhaseName.IDLE:
            return
        self.current = phase
        self.publish(phase, **extra)

    def publish(self, phase: Phase, **extra: Any) -> None:
        """Tell every monitor without recording: how a run ended stays readable when the process goes idle."""
        step, epoch, info = self._facts()
        for handle in [*_module_monitors, *self.monitors]:
            try:
                handle.monitor(phase, step, epoch, {**info, **extra})
            except Exception as error:
                if not handle.warned:
                    handle.warned = True
                    name = getattr(handle.monitor, "__name__", repr(handle.monitor))
                    warn(
                        f"the phase monitor {name} raised {exception_text(error)}; "
                        "it is told of further phases, this warning is given once"
                    )
