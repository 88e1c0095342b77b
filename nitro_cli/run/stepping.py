"""Calling the training program: its inputs, and one program per shape of batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nitro_cli.data import WindowPlan
from nitro_cli.errors import warn
from nitro_cli.programs import (
    MOST_STEPS,
    REAL,
    BatchWindow,
    Program,
    StepNames,
    StepPlan,
    StepTrace,
    build_repeated_step,
    build_train_step,
    choose_accumulation,
    trace_step,
)
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.dispatch import SECONDS
from nitro_cli.run.epoch_totals import EpochTotals
from nitro_cli.run.hyper_rows import HyperRows
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.state import RunState
from nitro_cli.run.step_plan import step_plan, trains_resident
from nitro_cli.run.windows import traced_window, window_plan

__all__ = ["WINDOW", "Stepper", "signature_of"]

WINDOW = "window"
"""What the program that takes windows is known by: its batches have one shape."""


class Stepper:
    """Takes optimizer steps: a train state in, the next one out.

    Args:
        plan: of the run.
        compiler: of the run.
        steps_per_dispatch: what the run began with; None for a run that begins.

    Attributes:
        step_plan: what the program is made from.
        inputs: what it reads beside the state and the batches.
        resident: whether the data is on the device.
        several: whether one call takes several steps; known once `settle` was called.
        windows: how streamed batches are gathered for it; None where they come one by one.
    """

    def __init__(self, plan: Plan, compiler: Compiler, steps_per_dispatch: int | None) -> None:
        self.step_plan: StepPlan = step_plan(plan)
        self.rows = HyperRows(plan.placement, log=plan.experiment.autolog_schedules)
        self.inputs: dict[str, Any] = {"anchors": plan.optim.anchors, "key": plan.model.key}
        self.resident = trains_resident(plan)
        self.several = False
        self.windows: WindowPlan | None = None
        self._plan = plan
        self._compiler = compiler
        self._began_with = steps_per_dispatch
        self._programs: dict[Any, Program] = {}
        self._traced: StepTrace | None = None
        self._settled = False
        self._row: dict[str, Any] = {}
        self._shapes_told = False
        self._device_of: Any = None
        self._wish: tuple[int, Any] = (-1, None)
        if plan.hooks.routed.padded:
            train = plan.splits["train"]
            real = (train.batches, 0) if train.padding is None else (train.padding.full, train.padding.rest)
            self.inputs[REAL] = plan.placement.put(np.asarray(real, np.int32))
        if self.resident:
            resident, fields = plan.splits["train"].resident, plan.hooks.routed.device_fields
            assert resident is not None
            self.inputs["arrays"] = plan.placement.put_resident(resident, fields)

    def entered(self, state: RunState, epoch: int, batch: int) -> RunState:
        """The state standing before micro-batch `batch` of an epoch; the order of resident data moves to the device."""
        plan = self._plan
        failed = np.asarray(state.position.failed, np.int32) if self.step_plan.patience > 1 else None
        at, stopped, failed = plan.placement.put((np.asarray(batch, np.int32), np.zeros((), bool), failed))
        if self.resident:
            resident = plan.splits["train"].resident
            assert resident is not None
            # Each device gathers its rows of a batch from arrays of its own.
            self.inputs["order"] = plan.placement.put_window({"": resident.indices(epoch, plan.settings.seed)})[""]
        position = state.position._replace(epoch=epoch, batch=batch, closed=False, weights_step=None)
        if batch == 0:
            position = position._replace(totals=EpochTotals())
        train = state.train._replace(position=at, stopped=stopped, failed=failed)
        return state._replace(train=train, position=position)

    def prepare_batch(self, index: int, batch: Mapping[str, np.ndarray]) -> Any:
        """A micro-batch as the program takes it: its signature, and the fields that some traced hook declares."""
        routed = self._routed(batch)
        return _signature(routed), self._plan.placement.put_batch(routed, self._plan.splits["train"].batch_size)

    def _routed(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        fields = self._plan.hooks.routed.device_fields
        return {name: value for name, value in batch.items() if name in fields}

    def first_program(self, state: RunState) -> Program:
        """Compile the program of the first steps, taking none."""
        state = self.entered(state, max(state.position.epoch, 1), state.position.batch)
        self.settle(state)
        if self.resident:
            return self.ready(state, (), ())
        if self.windows is not None:
            empty = {name: np.zeros(self.windows.shape(spec), spec.dtype) for name, spec in self.windows.fields.items()}
            return self.ready(state, WINDOW, BatchWindow(self.windows.place(empty), np.int32(0)))
        example = self._plan.splits["train"].example
        prepared = [self.prepare_batch(index, example) for index in range(self.step_plan.accum)]
        return self.ready(state, signature_of(prepared), tuple(batch for _, batch in prepared))

    def settle(self, state: RunState) -> None:
        """Decide, once, how many steps a call may take: from the step as it is traced, the backend and the data.

        Args:
            state: before a step, of an epoch that was entered.
        """
        if self._settled:
            return
        self._settled = True
        batches: Any = ()
        obstacle = None
        if not self.resident:
            windows = window_plan(self._plan)
            if isinstance(windows, str):
                obstacle = windows
            else:
                self.windows, batches = windows, traced_window(windows)
        if obstacle is None and self._began_with == 1:
            obstacle = "as the run began"
        if obstacle is None:
            self._renew_inputs(state, 0)
            args: tuple[Any, ...] = (state.train, batches, self.inputs)
            self._decide_accumulation(args)
            with Progress.phase("tracing the step"):
                self._traced = trace_step(build_train_step(self.step_plan), args)
            obstacle = self._traced.obstacle(self._plan.placement.devices[0].platform)
        self._decide_dispatch(obstacle)

    def ready(self, state: RunState, signature: Any, batches: Any, wish: int = 0) -> Program:
        """The program for such batches, its inputs as the step after `state` needs them.

        Args:
            state: before the step.
            signature: shapes and dtypes of the micro-batches; `WINDOW` for a window.
            batches: the micro-batches on the device; empty with resident data.
            wish: what this process asks the others for, where several train.
        """
        self._renew_inputs(state, wish)
        program = self._programs.get(signature)
        return self._compile(state, signature, batches) if program is None else program

    def _renew_inputs(self, state: RunState, wish: int) -> None:
        step, hyper = state.position.step, state.rules.hyper
        renewed = self.rows.stale(step, hyper)
        if renewed:
            self.inputs["rows"] = self.rows.table(step, hyper)
        if self._device_of != state.device.version or (renewed and hyper.scheduled_device_fields):
            self._device_of = state.device.version
            self.inputs["device"] = state.device.inputs(step)
        if self.step_plan.shares_wishes and wish != self._wish[0]:
            self._wish = (wish, self._plan.placement.put_each(np.int32(wish)))
        if self.step_plan.shares_wishes:
            self.inputs["wishes"] = self._wish[1]

    def tell_size(self, steps: int) -> None:
        """Say in the report how many steps a window holds, now that their time is known."""
        if self.windows is not None:
            self._plan.report.add("dispatch", [{**self._row, "now": steps}])

    def take_one_by_one(self) -> None:
        """Batches vary in shape: every step is a call of its own from now on."""
        if self.windows is not None:
            self.windows, self._began_with = None, None
            self._decide_dispatch("the shapes of the batches vary")

    def take(
        self, state: RunState, program: Program, batches: Any, count: int, stream_state: Any = None
    ) -> tuple[RunState, Any, Any]:
        """Dispatch `count` optimizer steps.

        Args:
            state: before them; its arrays are given away.
            program: of `ready`, for these batches.
            batches: as it was made for.
            count: how many.
            stream_state: of the train source after the batches.

        Returns:
            The state after them, whose buffers were those of `state`; the numbers, f32[R] or f32[MOST_STEPS, R]; the
            micro-batches' outputs, where the host needs them.
        """
        outputs = None
        if self.several:
            train, numbers = program(state.train, np.int32(count), batches, self.inputs)
        else:
            train, numbers, outputs = program(state.train, batches, self.inputs)
        position = state.position.stepped(count, count * self.step_plan.accum, stream_state, self.most)
        return state.at(train, position), numbers, outputs

    @property
    def most(self) -> int:
        """The most steps of one call."""
        if self.windows is not None:
            return self.windows.capacity // self.step_plan.accum
        return MOST_STEPS if self.several else 1

    def _compile(self, state: RunState, signature: Any, batches: Any) -> Program:
        args: tuple[Any, ...] = (state.train, batches, self.inputs)
        step: Any = self._traced if self.several or self.resident else None
        if step is None:
            self._decide_accumulation(args)
            step = build_train_step(self.step_plan)
        if self.several:
            step = build_repeated_step(step, self.step_plan.layout)
            args = (state.train, np.int32(1), batches, self.inputs)
        program = self._compiler.compile("train", step, args, donate_argnums=(0,))
        self._tell_shape(signature)
        if twice := self.step_plan.names.forward_twice:
            names = ", ".join(name.removeprefix("loss/") for name in twice)
            why = f"the forward runs twice: the denominators of {names} depend on it"
            self._plan.report.add("loss terms", [{"denominators": why}])
        self._programs[signature] = program
        return program

    def _decide_dispatch(self, obstacle: str | None) -> None:
        """Settle how many steps a dispatch may hold: a resumed run keeps what it began with, where it can."""
        before, reason = self._began_with, obstacle or "the data is on the device"
        self.several = obstacle is None
        self._row = {"steps in one call": f"up to {self.most}" if self.several else "1"}
        if not self.several:
            self.windows = None
            if before is not None and before > 1:
                reason += "; the run began with several, to which this agrees in all but rounding"
        elif self.windows is not None:
            reason = f"as many as take {1000 * SECONDS:g} ms, of the batches that are ready"
            self._row["window"] = f"{self.windows.capacity} batches, {self.windows.nbytes:,} bytes"
        self._row["because"] = reason
        self._plan.report.add("dispatch", [self._row])

    def _decide_accumulation(self, args: tuple[Any, ...]) -> None:
        single = build_train_step(replace(self.step_plan, accum=1, names=StepNames()))
        backend = self._plan.placement.devices[0].platform
        decided = choose_accumulation(self.step_plan.accum, backend, single, args)
        self.step_plan = replace(self.step_plan, scan=decided.scan)
        if self.step_plan.accum > 1:
            rows = [{"micro-batches": self.step_plan.accum, "folded": decided.reason}]
            self._plan.report.add("accumulation", rows)

    def _tell_shape(self, signature: Any) -> None:
        """Say once that batches of another shape cost another compile, naming what differed."""
        if not self._programs or self._shapes_told:
            return
        self._shapes_told = True
        first = next(iter(self._programs))
        if first == WINDOW:
            first = (_signature(self._routed(self._plan.splits["train"].example)),)
        before = {name: text for name, *text in first[0]}
        now = {name: text for batch in signature for name, *text in batch if before.get(name) != text}
        changed = [
            f"{name}: {' '.join(map(str, before.get(name, ['none'])))} before, {' '.join(map(str, text))} now"
            for name, text in now.items()
        ]
        warn(
            "the training program is compiled again for a batch of another shape: "
            + ("; ".join(changed) or f"{first} before, {signature} now")
        )


def _signature(batch: Mapping[str, np.ndarray]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple([(name, value.shape, value.dtype.str) for name, value in batch.items()])


def signature_of(prepared: Sequence[tuple[Any, Any]]) -> Any:
    """What a program is known by: the shapes and dtypes of the micro-batches of a step."""
    return tuple([signature for signature, _ in prepared])
