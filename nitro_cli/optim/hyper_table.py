"""The traced hyperparameters of a run: what they are called, and their values by optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nitro_cli.errors import ScheduleError, warn
from nitro_cli.optim.gradient_rules import GradRule, PerturbRule
from nitro_cli.optim.group_rule import GroupRule
from nitro_cli.optim.placed_rule import PlacedRule
from nitro_cli.optim.plateau import PlateauCounters
from nitro_cli.optim.value_source import BLOCK, ValueSource

__all__ = ["BindingRow", "Column", "GroupRow", "Hyper", "constant_column", "horizon_jump", "log_names"]


_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Column:
    """One traced hyperparameter.

    Attributes:
        name: `default/learning_rate`, `clip_norm`, `ema_beta`, `grad/rho`, `device/smoothing`, ...
        source: its values before scaling.
        factor: what the values are multiplied by: a group's rate ratio, else 1.
        key: the schedule that drives it, None for a constant of the configuration.
        log: its name on the train lines, None where it does not vary.
        dtype: what the device holds its values in: the field's own of a Device field, else float32.
    """

    name: str
    source: ValueSource
    factor: float = 1.0
    key: str | None = None
    log: str | None = None
    dtype: np.dtype[Any] = _FLOAT32


@dataclass(frozen=True)
class BindingRow:
    """One schedule in the setup report: its key, where it bound, where it came from, what it is."""

    key: str
    bound: tuple[str, ...]
    origin: str
    schedule: str


@dataclass(frozen=True)
class GroupRow:
    """One parameter group in the setup report."""

    group: str
    rate: str
    ratio: float
    anchor: str
    decay: str
    rule: str
    parameters: int
    leaves: int


@dataclass(frozen=True)
class Hyper:
    """Every traced hyperparameter of a run, as its plateaus stand.

    A program gets one float32 row per optimizer step, one entry per column; nothing of it is baked in. Beside the rows
    each Device field that a schedule can drive has a value per step, in its own dtype and whether or not one does: a
    field that becomes scheduled is the same input of the same program.

    Attributes:
        column_list: the columns in row order.
        rules: optimizer rule per trained group; empty in manual mode.
        grad_rule: the gradient rule.
        bindings, groups: rows of the setup report.
        plateaus: where the plateau of each schedule key stands.
        total_steps: the horizon.
        device_columns: one column per scheduled Device field, `device/<name>`; not part of the rows.
        device_fields: the Device fields that a schedule can drive.
        bind_columns: one column per schedule `bind.<name>`, host numbers for `placed`; not part of the rows.
        placed: where the experiment builds its gradient rule from the step's numbers, what fills the rule's columns.
        apply_row: in manual mode, `(opt_state, row) -> opt_state` with the scheduled hyperparameters set, traceable.
    """

    column_list: tuple[Column, ...]
    rules: Mapping[str, GroupRule]
    grad_rule: GradRule
    bindings: tuple[BindingRow, ...]
    groups: tuple[GroupRow, ...]
    plateaus: Mapping[str, PlateauCounters]
    total_steps: int
    device_columns: tuple[Column, ...] = ()
    device_fields: tuple[str, ...] = ()
    bind_columns: tuple[Column, ...] = ()
    placed: PlacedRule | None = None
    apply_row: Callable[[Any, Any], Any] = field(default=lambda opt_state, row: opt_state)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {column.name: i for i, column in enumerate(self.column_list)}

    @cached_property
    def _all(self) -> tuple[Column, ...]:
        return (*self.column_list, *self.device_columns, *self.bind_columns)

    @cached_property
    def _logged(self) -> tuple[tuple[str, int], ...]:
        return tuple((c.log, i) for i, c in enumerate(self._all) if c.log is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the row's entries, in order."""
        return tuple(self._index)

    def column(self, name: str) -> int:
        """Where `name` stands in a row."""
        return self._index[name]

    def has_column(self, name: str) -> bool:
        """Whether rows have an entry `name`."""
        return name in self._index

    @property
    def rule(self) -> PerturbRule | None:
        """The perturbing gradient rule, or None for the plain gradient."""
        return self.grad_rule if isinstance(self.grad_rule, PerturbRule) else None

    @property
    def scheduled_device_fields(self) -> tuple[str, ...]:
        """Device fields that a schedule drives."""
        return tuple(column.name.removeprefix("device/") for column in self.device_columns)

    def scheduled_of_group(self, group: str) -> tuple[str, ...]:
        """The scheduled hyperparameters of `group` beside its learning rate and decay."""
        prefix = f"{group}/"
        names = (name.removeprefix(prefix) for name in self._index if name.startswith(prefix))
        return tuple(name for name in names if name not in ("learning_rate", "weight_decay"))

    def table(self, start_step: int, count: int = BLOCK) -> npt.NDArray[np.float32]:
        """Rows for `count` optimizer steps from `start_step` on, the first step being 1.

        Returns:
            float32[count, len(columns)]. A step's row is the same whatever `start_step` was.
        """
        return self._doubles(start_step, count)[:, : len(self.column_list)].astype(np.float32)

    def device_values(self, start_step: int, count: int = BLOCK) -> dict[str, npt.NDArray[np.float64]]:
        """The values of the scheduled Device fields, float64[count] each, at the steps of `table`."""
        rows, first = self._doubles(start_step, count), len(self.column_list)
        return {name: rows[:, first + i] for i, name in enumerate(self.scheduled_device_fields)}

    def _doubles(self, start: int, count: int) -> npt.NDArray[np.float64]:
        rows = np.empty((count, len(self._all)), np.float64)
        for i, column in enumerate(self._all):
            plateau = self.plateaus.get(column.key or "")
            scale = plateau.scale if plateau is not None else 1.0
            rows[:, i] = column.source.values(start, count) * scale * column.factor
            _check_whole(column, start, rows[:, i])
            _check_carried(column, start, rows[:, i])
        if self.placed is not None:
            self.placed.fill(rows, start)
        return rows

    def varying(self) -> tuple[str, ...]:
        """The names under which varying schedules are logged: `schedule/<key>` or `schedule/<group>/<key>`."""
        return tuple(name for name, _ in self._logged)

    def logged_values(self, start_step: int, count: int = BLOCK) -> dict[str, list[float]]:
        """The varying schedules' values at the steps of `table`, as the device holds them, by name as `varying`."""
        rows = self._doubles(start_step, count)
        return {name: rows[:, i].astype(self._all[i].dtype).astype(np.float64).tolist() for name, i in self._logged}

    def values_at(self, step: int) -> dict[str, float]:
        """The varying schedules' values at `step`, by the names of `varying`."""
        row = self._doubles(step, 1)[0]
        return {name: float(row[i]) for name, i in self._logged}

    def after(self, epoch: int, metrics: Mapping[str, Any], leaving: Collection[str] = ()) -> tuple[Hyper, list[str]]:
        """The hyperparameters after an epoch, and sentences to announce, one per reduction.

        Args:
            epoch: the epoch.
            metrics: of it.
            leaving: the keys of plateaus that do not take it in.

        Raises:
            MetricError: a plateau's metric is missing or not a real number.
        """
        stand = {key: counters.after(metrics, key) for key, counters in self.plateaus.items() if key not in leaving}
        said = [f"epoch {epoch}: {sentence}" for _, sentence in stand.values() if sentence is not None]
        plateaus = {**self.plateaus, **{key: counters for key, (counters, _) in stand.items()}}
        return replace(self, plateaus=plateaus), said

    def plateau_scales(self) -> dict[str, float]:
        """The scale of every plateau, to log per epoch as `schedule/plateau/<key>`."""
        return {f"schedule/plateau/{key}": counters.scale for key, counters in self.plateaus.items()}

    def state(self) -> dict[str, Any]:
        """JSON-ready state for a checkpoint."""
        return {"plateaus": {key: counters.state() for key, counters in self.plateaus.items()}}

    def continued(self, state: Mapping[str, Any]) -> Hyper:
        """The same, its plateaus standing where those of a checkpoint's state do.

        Warns:
            NitroWarning: a plateau watches another metric or mode now and starts fresh, or the run has it no more.
        """
        saved, plateaus = dict(state.get("plateaus", {})), dict(self.plateaus)
        for key, counters in self.plateaus.items():
            old = saved.pop(key, None)
            if old is None:
                continue
            held = counters.continued(old)
            if held is None:
                warn(
                    f"the plateau of {key!r} followed {old['metric']} ({old['mode']}), now {counters.metric} "
                    f"({counters.mode}): its counters start fresh"
                )
            plateaus[key] = held or counters
        for key, old in saved.items():
            warn(f"the checkpoint has a plateau on {key!r} (scale {old['scale']:g}), which this run has not")
        return replace(self, plateaus=plateaus)


def horizon_jump(old: Hyper, new: Hyper, step: int) -> list[str]:
    """How the schedules jump when a resume changes the horizon.

    Args:
        old: bound over the horizon of the record, its plateaus standing as there.
        new: bound over this run's horizon, likewise.
        step: optimizer steps done.

    Returns:
        One sentence per schedule whose value at the next step differs, with the value before and after (at the last
        step that both horizons have, where the next one lies beyond); empty for an unchanged horizon.
    """
    if old.total_steps == new.total_steps:
        return []
    at = max(1, min(step + 1, old.total_steps, new.total_steps))
    before, after = old.values_at(at), new.values_at(at)
    return [
        f"{name} at step {at} is {after[name]:.6g} over {new.total_steps} steps; it was {before[name]:.6g} over "
        f"{old.total_steps}"
        for name in after
        if name in before and before[name] != after[name]
    ]


def _check_whole(column: Column, start: int, values: npt.NDArray[np.float64]) -> None:
    if column.dtype.kind not in "iu":
        return
    broken = np.flatnonzero(values != np.rint(values))
    if broken.size:
        raise ScheduleError(
            f"schedule {column.key!r} is {values[broken[0]]:g} at step {start + int(broken[0])}",
            where=column.name,
            why="the field holds an integer",
            fix="round the schedule's values, or declare the field Device[float]",
        )


def _check_carried(column: Column, start: int, values: npt.NDArray[np.float64]) -> None:
    """Refuse a value that overflows in what the device holds it in."""
    if column.dtype.kind in "iu":
        info = np.iinfo(column.dtype)
        broken, held = np.flatnonzero((values < info.min) | (values > info.max)), f"{info.min} to {info.max}"
    else:
        with np.errstate(over="ignore"):
            carried = values.astype(column.dtype).astype(np.float64)
        broken, held = np.flatnonzero(np.isinf(carried) & np.isfinite(values)), "no number of that size"
    if broken.size:
        value = values[broken[0]]
        raise ScheduleError(
            f"schedule {column.key!r} is {value:.17g} at step {start + int(broken[0])}"
            if column.key
            else f"{column.name} is {value:.17g}",
            where=column.name,
            why=f"it is {column.dtype} on the device, which holds {held}",
            fix="schedule smaller values, and scale them in the hook that reads them",
        )


def constant_column(name: str, value: float) -> Column:
    """A hyperparameter that no schedule drives."""
    number = float(value)
    return Column(name, ValueSource(name, f"{number:g}", lambda steps: np.full(len(steps), number), number))


def log_names(columns: Sequence[Column], groups: Sequence[str]) -> dict[str, str]:
    """The log name per column that varies, as `schedule/<key>`; per group where there are several.

    A Device field and a hyperparameter of one name keep apart by their qualified forms.
    """
    short: dict[str, list[str]] = {}
    for column in columns:
        space, _, name = column.name.rpartition("/")
        grouped = space in groups and len(groups) > 1
        short.setdefault(f"schedule/{space}/{name}" if grouped else f"schedule/{name}", []).append(column.name)
    result: dict[str, str] = {}
    for label, owners in short.items():
        for owner in owners:
            space, _, name = owner.rpartition("/")
            result[owner] = label if len(owners) == 1 else f"schedule/{'opt' if space in groups else space}.{name}"
    return result
