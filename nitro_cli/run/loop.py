"""The training loop: epochs of compiled steps, read back one dispatch late.

Per epoch: steps, validation, stop rules and schedule feedback, logging, the checkpoint. The device never waits for the
host: while one dispatch runs, the host reads and logs the one before it. Over resident data a dispatch holds several
steps, otherwise one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.errors import DataError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import (
    MOST_STEPS,
    Program,
    StepNames,
    StepPlan,
    build_repeated_step,
    build_train_step,
    choose_accumulation,
    trace_step,
)
from nitro_cli.run.dispatch import Burst, Pending
from nitro_cli.run.divergence import divergence_error
from nitro_cli.run.hyper_rows import HyperRows, device_inputs
from nitro_cli.run.phases import Phase, PhaseName
from nitro_cli.run.progress import Progress
from nitro_cli.run.stoppable_data import DataStopped, next_batch, until_stopped

if TYPE_CHECKING:
    from nitro_cli.run.handle import Nitro
    from nitro_cli.run.training import TrainingSession

__all__ = ["EpochSums", "TrainLoop"]

SAVE = 8
"""Added to what a process asks the others for when a save is due; below it are the causes of a stop."""


@dataclass
class EpochSums:
    """The running loss of the epoch in progress: a float64 sum and how many steps it holds."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        """The epoch's mean training loss; NaN when no step was taken."""
        return self.total / self.count if self.count else math.nan


@dataclass
class TrainLoop:
    """One `train()` call of a handle.

    Attributes:
        nitro: the handle, whose train state the loop replaces.
        session: what the loop asks for everything that is not a step.
        plan: the step program's plan.
    """

    nitro: Nitro
    session: TrainingSession
    plan: StepPlan
    programs: dict[Any, Program] = field(default_factory=dict)
    steps_finished: int = 0
    _wish: tuple[int, Any] = (-1, None)

    def __post_init__(self) -> None:
        parts = self.nitro.parts
        self.inputs: dict[str, Any] = {"anchors": parts.anchors, "key": parts.key}
        self.rows = HyperRows(parts)
        self.burst = Burst(1)
        self._several = False
        self.sums = EpochSums(*parts.epoch_sums)
        self._last_saved = time.monotonic()
        self._save_wished = False
        if self.plan.shares_wishes:
            self.nitro.stop.share()
        if self.plan.resident:
            resident = parts.splits["train"].resident
            assert resident is not None
            fields = parts.routing.device_fields
            self.inputs["arrays"] = parts.placement.put({k: v for k, v in resident.arrays.items() if k in fields})

    def run(self) -> str:
        """Train to the end, an early stop or a request; return the stop reason."""
        nitro = self.nitro
        parts = nitro.parts
        e = parts.experiment
        epoch, position = nitro.epoch, parts.position
        if parts.epoch_closed:
            epoch, position = epoch + 1, 0
        while epoch <= e.max_epochs:
            parts.epoch, parts.epoch_closed = epoch, False
            wait = self._train_epoch(epoch, position)
            if nitro.stop.pending():
                self.session.save_resume_point(self.sums)
                return "requested"
            try:
                if self._close_epoch(epoch, wait):
                    return "early_stop"
            except DataStopped:
                self.session.save_resume_point(self.sums)
                return "requested"
            if nitro.stop.pending() and epoch < e.max_epochs:
                self.session.save_resume_point(self.sums)
                return "requested"
            epoch, position = epoch + 1, 0
        return "completed"

    def prepare(self) -> Program:
        """Compile the program of the first steps, taking none."""
        parts = self.nitro.parts
        split = parts.splits["train"]
        self._enter(parts.position)
        if self.plan.resident:
            self._order(max(parts.epoch, 1))
            return self._ready("resident", ())
        prepared = [self._prepare()(index, split.example) for index in range(self.plan.accum)]
        return self._ready(_signature(prepared), tuple(batch for _, batch in prepared))

    def _enter(self, position: int) -> None:
        """Stand before the micro-batch `position` of an epoch."""
        parts = self.nitro.parts
        parts.position = position
        fresh = parts.placement.put((np.asarray(position, np.int32), np.zeros((), bool)))
        self.nitro.carry = self.nitro.carry._replace(position=fresh[0], stopped=fresh[1])

    def _order(self, epoch: int) -> None:
        """Move the order of an epoch over resident data to the device."""
        parts = self.nitro.parts
        resident = parts.splits["train"].resident
        assert resident is not None
        self.inputs["order"] = parts.placement.put(np.asarray(resident.indices(epoch, parts.seed)))

    def _train_epoch(self, epoch: int, position: int) -> float:
        nitro, parts = self.nitro, self.nitro.parts
        split = parts.splits["train"]
        if position == 0:
            self.sums = EpochSums()
        self._enter(position)
        nitro.set_phase(Phase(PhaseName.TRAINING))
        steps, before = split.batches // self.plan.accum, position // self.plan.accum
        Progress.call("begin", "train", steps, epoch, parts.experiment.max_epochs)
        if before:  # an epoch that a resume goes on with
            Progress.call("step", before, None)
        self.burst.pause()
        started = time.perf_counter()
        wait = 0.0
        try:
            if self.plan.resident:
                self._resident_steps(epoch, position)
            else:
                wait = self._streamed_steps(epoch, position)
        finally:
            parts.epoch_sums = (self.sums.total, self.sums.count)
            Progress.call("end", {"loss": self.sums.mean} if self.sums.count else None)
        elapsed = time.perf_counter() - started
        return wait / elapsed if elapsed > 0 else 0.0

    def _resident_steps(self, epoch: int, position: int) -> None:
        parts = self.nitro.parts
        split = parts.splits["train"]
        self._order(epoch)
        pending: Pending | None = None
        at = position
        while at < split.batches:
            program = self._ready("resident", ())
            pending = self._dispatch(program, (), (), at, self._count(split.batches - at), pending)
            at = parts.position
            if self._boundary(epoch, pending):
                pending = None
            if self.nitro.stop.pending():
                break
        self._finish(pending, epoch)

    def _count(self, batches: int) -> int:
        """Steps of the next dispatch: up to the end of the epoch, of the hyperparameters' block, or a checkpoint."""
        step = self.nitro.step
        count = min(self.burst.size, batches // self.plan.accum, BLOCK - step % BLOCK)
        every = self.nitro.parts.experiment.checkpoint_every_n_steps
        return count if every is None else min(count, every - step % every)

    def _streamed_steps(self, epoch: int, position: int) -> float:
        parts, accum = self.nitro.parts, self.plan.accum
        split = parts.splits["train"]
        pending: Pending | None = None
        with (
            split.stream(
                epoch=epoch,
                seed=parts.seed,
                start=position,
                state=parts.stream_state if position else None,
                prepare=self._prepare(),
                device_fields=parts.routing.device_fields,
                ahead=not parts.placement.on_host,
            ) as stream,
            until_stopped(stream, self.nitro.stop, split.name, patience=0.0) as items,
        ):
            at = position
            try:
                while at < split.batches:
                    group = tuple(next_batch(items, split.name, at + i) for i in range(accum))
                    signature = _signature([item.device for item in group])
                    batches = tuple(item.device[1] for item in group)
                    parts.stream_state = group[-1].state
                    hosts = tuple(item.host for item in group) if parts.keep_host_batches else ()
                    pending = self._dispatch(self._ready(signature, batches), batches, hosts, at, 1, pending)
                    at += accum
                    if self._boundary(epoch, pending):
                        pending = None
                    if self.nitro.stop.pending():
                        break
                else:
                    for extra in items:
                        raise DataError(
                            f"split 'train' gave batch {extra.index + 1}, its length says {split.batches}",
                            fix="make len(source) the number of batches it yields",
                        )
            except DataStopped:
                pass  # the step before is the last: the run stops there
            self._finish(pending, epoch)
            return stream.wait_seconds

    def _prepare(self) -> Any:
        placement, fields = self.nitro.parts.placement, self.nitro.parts.routing.device_fields
        size = self.nitro.parts.splits["train"].batch_size

        def prepare(index: int, batch: Mapping[str, np.ndarray]) -> Any:
            routed = {name: value for name, value in batch.items() if name in fields}
            signature = tuple((name, value.shape, value.dtype.str) for name, value in routed.items())
            return signature, placement.put_batch(routed, size)

        return prepare

    def _ready(self, signature: Any, batches: tuple[Any, ...]) -> Program:
        """The program for such batches, its inputs as the next step needs them."""
        if self.rows.stale():
            self.refresh_rows()
        if self.plan.shares_wishes:
            self.inputs["wishes"] = self._wishes()
        program = self.programs.get(signature)
        return self._compile(signature, batches) if program is None else program

    def _dispatch(
        self,
        program: Program,
        batches: tuple[Any, ...],
        hosts: tuple[Any, ...],
        position: int,
        count: int,
        pending: Pending | None,
    ) -> Pending:
        """Dispatch `count` optimizer steps, then read those before them."""
        nitro = self.nitro
        outputs = None
        if self._several:
            nitro.carry, readback = program(nitro.carry, np.int32(count), self.inputs)
        else:
            nitro.carry, readback, outputs = program(nitro.carry, batches, self.inputs)
        first = nitro.step + 1
        nitro.parts.step += count
        nitro.parts.position = position + count * self.plan.accum
        current = Pending(batches, first, position, count, readback, outputs, hosts)
        self._finish(pending, nitro.epoch)
        return current

    def _compile(self, signature: Any, batches: tuple[Any, ...]) -> Program:
        nitro = self.nitro
        args: tuple[Any, ...] = (nitro.carry, batches, self.inputs)
        self._decide_accumulation(args)
        step = build_train_step(self.plan)
        if self.plan.resident:
            with Progress.phase("tracing the step"):
                traced = step = trace_step(step, args)
            self._decide_dispatch(traced.obstacle(nitro.parts.placement.devices[0].platform))
            if self._several:
                step, args = build_repeated_step(traced), (nitro.carry, np.int32(1), self.inputs)
                self.burst = Burst(MOST_STEPS)
        else:
            self._decide_dispatch("its batches come from the host")
        program = nitro.compile("train", step, args, donate_argnums=(0,))
        self.session.note_train_shape(signature, self.programs, program)
        self.programs[signature] = program
        return program

    def _decide_dispatch(self, obstacle: str | None) -> None:
        """Settle how many steps a dispatch may hold: a resumed run keeps what it began with, where it can."""
        parts = self.nitro.parts
        before, count = parts.steps_per_dispatch, 1 if obstacle else MOST_STEPS
        reason = obstacle or "the data is on the device"
        if before == 1 and count > 1:
            count, reason = 1, "as the run began"
        elif before is not None and before > 1 and count == 1:
            reason += "; the run began with several, to which this agrees in all but rounding"
        parts.steps_per_dispatch = count
        self._several = count > 1
        text = "1" if count == 1 else f"up to {count}"
        parts.report.add("dispatch", [{"steps in one call": text, "because": reason}])

    def _decide_accumulation(self, args: tuple[Any, ...]) -> None:
        parts = self.nitro.parts
        single = build_train_step(replace(self.plan, accum=1, names=StepNames()))
        backend = parts.placement.devices[0].platform
        decided = choose_accumulation(self.plan.accum, backend, single, args)
        self.plan = replace(self.plan, scan=decided.scan)
        if self.plan.accum > 1:
            parts.report.add("accumulation", [{"micro-batches": self.plan.accum, "folded": decided.reason}])

    def _wishes(self) -> Any:
        """What this process asks for: a stop, by its cause, and beside it a save whose time has come."""
        minutes = self.nitro.parts.experiment.checkpoint_every_minutes
        due = minutes is not None and time.monotonic() - self._last_saved >= minutes * 60
        wish = self.nitro.stop.wish() + (SAVE if due else 0)
        if wish != self._wish[0]:
            self._wish = (wish, self.nitro.parts.placement.put_each(np.int32(wish)))
        return self._wish[1]

    def refresh_rows(self) -> None:
        """Compute the hyperparameters of the block of steps that the next step is in, and move them to the device."""
        self.inputs["rows"] = self.rows.next_table()
        if "device" not in self.inputs or self.nitro.parts.hyper.scheduled_device_fields:
            self.device_changed()

    def device_changed(self) -> None:
        """Move the Device fields of the steps to come to the device: one was set, or schedules have other values."""
        self.inputs["device"] = device_inputs(self.nitro.parts, self.nitro.step)

    def _boundary(self, epoch: int, pending: Pending) -> bool:
        """Write a checkpoint inside the epoch if one is due; True when that read `pending`."""
        nitro = self.nitro
        e = nitro.parts.experiment
        if nitro.parts.position >= nitro.parts.splits["train"].batches:
            return False
        steps, minutes = e.checkpoint_every_n_steps, e.checkpoint_every_minutes
        due = steps is not None and nitro.step % steps == 0
        if self.plan.shares_wishes:
            due = due or self._save_wished
        else:
            due = due or (minutes is not None and time.monotonic() - self._last_saved >= minutes * 60)
        if not due:
            return False
        self._finish(pending, epoch)
        self._last_saved = time.monotonic()
        self._save_wished = False
        self.session.save_resume_point(self.sums)
        self.burst.pause()
        return True

    def _finish(self, pending: Pending | None, epoch: int) -> None:
        """Read the numbers of dispatched steps, act on a non-finite one, count and log them."""
        if pending is None:
            return
        rows = pending.rows()
        if self._several:
            self.burst.finished(pending.count)
        nitro = self.nitro
        for index, numbers in enumerate(rows):
            step = pending.step + index
            loss = float(numbers[0])
            if self.plan.check_divergence and not numbers[1]:
                nitro.parts.step = step - 1
                nitro.parts.position = pending.position + index * self.plan.accum
                raise divergence_error(nitro, self.plan, self.inputs, pending.batches, step, loss)
            if self.plan.shares_wishes:
                self.nitro.stop.agree(int(numbers[2]) % SAVE)
                self._save_wished = self._save_wished or numbers[2] >= SAVE
            self.steps_finished += 1
            self.sums.total += loss
            self.sums.count += 1
            due = self.session.logger is not None and not step % nitro.parts.experiment.log_every_n_steps
            # Train metrics on the host are computed at every step, logged or not.
            if due or self.plan.outputs_to_host:
                line = self._line(pending, numbers)
                if due:
                    line.update(self.rows.logged(step))
                    self.session.log_metrics(line, step=step, epoch=epoch, context="train")
        Progress.units(pending.count, {"loss": loss})

    def _line(self, pending: Pending, numbers: np.ndarray) -> dict[str, float]:
        """The numbers of a step by name."""
        first = 3 if self.plan.shares_wishes else 2
        line = {"loss": float(numbers[0])}
        line.update(zip(self.plan.names.names[first:], numbers[first:].tolist(), strict=True))
        if self.plan.outputs_to_host:
            line.update(self.session.host_train_metrics(pending.outputs, pending.hosts, line))
        return line

    def _close_epoch(self, epoch: int, wait: float) -> bool:
        """Validation, stop rules, schedule feedback, logging, checkpoint; True to stop early."""
        metrics = self.session.validate_epoch()
        stop = self.session.should_stop(epoch, metrics)
        if self.session.observe(epoch, metrics):
            self.refresh_rows()
        self.session.close_epoch(epoch, self.sums, metrics, wait, stop_reason="early_stop" if stop else None)
        self._last_saved = time.monotonic()
        return stop


def _signature(prepared: Sequence[tuple[Any, Any]]) -> Any:
    """What a program is known by: the shapes and dtypes of the micro-batches of a step."""
    return prepared[0][0] if len(prepared) == 1 else tuple(signature for signature, _ in prepared)
