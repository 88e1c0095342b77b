"""The values of an experiment's schedules over the horizon, and the plateaus that scale them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_cli.errors import HookError, ScheduleError
from nitro_cli.optim.plateau import Plateau, PlateauCounters
from nitro_cli.optim.value_source import ValueSource, resolve_schedule

__all__ = ["BoundValue", "resolve_entries"]

BoundValue = tuple[ValueSource, Plateau | None]

_LONGEST = 2**24  # optimizer steps; no warmup is longer


def resolve_entries(
    entries: Mapping[str, Any], total_steps: int, monitor: Any, *, trains: bool = True
) -> tuple[dict[str, BoundValue], dict[str, PlateauCounters]]:
    """The values of every schedule over the horizon, and the counters of those under a plateau.

    Raises:
        ScheduleError: an entry is no schedule, or a plateau has no metric to follow.
    """
    resolve = resolve_schedule if trains else _over_some_horizon
    resolved = {key: resolve(key, entry, total_steps) for key, entry in entries.items()}
    counters: dict[str, PlateauCounters] = {}
    for key, (_, plateau) in resolved.items():
        if plateau is None:
            continue
        metric, mode = plateau.metric, plateau.mode
        if metric is None:
            if monitor is None:
                raise ScheduleError(
                    f"the plateau on {key!r} has no metric to follow",
                    why="it names none and the run has no monitor",
                    fix="give the plateau metric and mode, or set monitor, such as ('loss', 'min')",
                )
            metric, mode = monitor
        assert mode is not None
        counters[key] = PlateauCounters(plateau, metric, mode)
    return resolved, counters


def _over_some_horizon(key: str, entry: Any, total: int) -> BoundValue:
    """A schedule for a handle that does not train: where `total` does not suit it, over the next doubling that does.

    Such a handle reads a Device field's value at one step and nothing else, and may have no horizon at all.
    """
    horizon, refused = total, None
    while horizon < total + _LONGEST:
        try:
            found = resolve_schedule(key, entry, horizon)
            found[0].values(1, 1)
            return found
        except (ScheduleError, HookError) as error:
            refused = refused or error
            horizon *= 2
    assert refused is not None
    raise refused
