"""Calling the training program: its inputs, and one program per shape of batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nitro_cli.errors import warn
from nitro_cli.programs import (
    MOST_STEPS,
    REAL,
    Program,
    StepNames,
    StepPlan,
    build_repeated_step,
    build_train_step,
    choose_accumulation,
    trace_step,
)
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.epoch_totals import EpochTotals
from nitro_cli.run.hyper_rows import HyperRows
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.state import RunState
from nitro_cli.run.step_plan import step_plan, trains_resident

__all__ = ["Stepper", "signature_of"]


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
        several: whether one call takes several steps; known once a program was made.
    """

    def __init__(self, plan: Plan, compiler: Compiler, steps_per_dispatch: int | None) -> None:
        self.step_plan: StepPlan = step_plan(plan)
        self.rows = HyperRows(plan.placement, log=plan.experiment.autolog_schedules)
        self.inputs: dict[str, Any] = {"anchors": plan.optim.anchors, "key": plan.model.key}
        self.resident = trains_resident(plan)
        self.several = False
        self._plan = plan
        self._compiler = compiler
        self._began_with = steps_per_dispatch
        self._programs: dict[Any, Program] = {}
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
            self.inputs["arrays"] = plan.placement.put({k: v for k, v in resident.arrays.items() if k in fields})

    def entered(self, state: RunState, epoch: int, batch: int) -> RunState:
        """The state standing before micro-batch `batch` of an epoch; the order of resident data moves to the device."""
        plan = self._plan
        failed = np.asarray(state.position.failed, np.int32) if self.step_plan.patience > 1 else None
        at, stopped, failed = plan.placement.put((np.asarray(batch, np.int32), np.zeros((), bool), failed))
        if self.resident:
            resident = plan.splits["train"].resident
            assert resident is not None
            self.inputs["order"] = plan.placement.put(np.asarray(resident.indices(epoch, plan.settings.seed)))
        position = state.position._replace(epoch=epoch, batch=batch, closed=False, weights_step=None)
        if batch == 0:
            position = position._replace(totals=EpochTotals())
        train = state.train._replace(position=at, stopped=stopped, failed=failed)
        return state._replace(train=train, position=position)

    def prepare_batch(self, index: int, batch: Mapping[str, np.ndarray]) -> Any:
        """A micro-batch as the program takes it: its signature, and the fields that some traced hook declares."""
        plan = self._plan
        fields, size = plan.hooks.routed.device_fields, plan.splits["train"].batch_size
        routed = {name: value for name, value in batch.items() if name in fields}
        signature = tuple((name, value.shape, value.dtype.str) for name, value in routed.items())
        return signature, plan.placement.put_batch(routed, size)

    def first_program(self, state: RunState) -> Program:
        """Compile the program of the first steps, taking none."""
        state = self.entered(state, max(state.position.epoch, 1), state.position.batch)
        if self.resident:
            return self.ready(state, (), ())
        example = self._plan.splits["train"].example
        prepared = [self.prepare_batch(index, example) for index in range(self.step_plan.accum)]
        return self.ready(state, signature_of(prepared), tuple(batch for _, batch in prepared))

    def ready(self, state: RunState, signature: Any, batches: tuple[Any, ...], wish: int = 0) -> Program:
        """The program for such batches, its inputs as the step after `state` needs them.

        Args:
            state: before the step.
            signature: shapes and dtypes of the micro-batches.
            batches: the micro-batches on the device; empty with resident data.
            wish: what this process asks the others for, where several train.
        """
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
        program = self._programs.get(signature)
        return self._compile(state, signature, batches) if program is None else program

    def take(
        self, state: RunState, program: Program, batches: tuple[Any, ...], count: int, stream_state: Any = None
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
        most = MOST_STEPS if self.several else 1
        position = state.position.stepped(count, count * self.step_plan.accum, stream_state, most)
        return state.at(train, position), numbers, outputs

    def _compile(self, state: RunState, signature: Any, batches: tuple[Any, ...]) -> Program:
        args: tuple[Any, ...] = (state.train, batches, self.inputs)
        self._decide_accumulation(args)
        step = build_train_step(self.step_plan)
        if self.resident:
            with Progress.phase("tracing the step"):
                traced = step = trace_step(step, args)
            self._decide_dispatch(traced.obstacle(self._plan.placement.devices[0].platform))
            if self.several:
                step, args = build_repeated_step(traced), (state.train, np.int32(1), batches, self.inputs)
        else:
            self._decide_dispatch("its batches come from the host")
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
        before, count = self._began_with, 1 if obstacle else MOST_STEPS
        reason = obstacle or "the data is on the device"
        if before == 1 and count > 1:
            count, reason = 1, "as the run began"
        elif before is not None and before > 1 and count == 1:
            reason += "; the run began with several, to which this agrees in all but rounding"
        self._began_with, self.several = count, count > 1
        text = "1" if count == 1 else f"up to {count}"
        self._plan.report.add("dispatch", [{"steps in one call": text, "because": reason}])

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
        changed = [
            f"{a[0]}: {a[1]} {a[2]} before, {b[1]} {b[2]} now" for a, b in zip(first, signature, strict=False) if a != b
        ]
        warn(
            "the training program is compiled again for a batch of another shape: "
            + ("; ".join(changed) or f"{first} before, {signature} now")
        )


def signature_of(prepared: Sequence[tuple[Any, Any]]) -> Any:
    """What a program is known by: the shapes and dtypes of the micro-batches of a step."""
    return prepared[0][0] if len(prepared) == 1 else tuple(signature for signature, _ in prepared)
