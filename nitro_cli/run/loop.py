"""The training loop: epochs of compiled steps, each read back one step late.

Per epoch: steps, validation, stop rules and schedule feedback, logging, the checkpoint. The device never waits for the
host: while step `n` runs, the host reads and logs step `n - 1`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.errors import DataError, DivergenceError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import Program, StepNames, StepPlan, build_train_step, choose_accumulation, locate_divergence
from nitro_cli.run.phases import Phase, PhaseName
from nitro_cli.run.progress import Progress

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
class _Pending:
    """A dispatched step whose numbers were not read yet, with what it was called with."""

    batches: tuple[Any, ...]
    step: int
    position: int
    readback: Any
    outputs: Any
    hosts: tuple[Mapping[str, np.ndarray], ...]


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
    steps_dispatched: int = 0
    _wish: tuple[int, Any] = (-1, None)

    def __post_init__(self) -> None:
        parts = self.nitro.parts
        self.inputs: dict[str, Any] = {"device": dict(parts.device), "anchors": parts.anchors, "key": parts.key}
        self._block = -1
        self._logged: dict[str, list[float]] = {}
        self._previous: dict[str, list[float]] = {}
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
            if self._close_epoch(epoch, wait):
                return "early_stop"
            if nitro.stop.pending() and epoch < e.max_epochs:
                self.session.save_resume_point(self.sums)
                return "requested"
            epoch, position = epoch + 1, 0
        return "completed"

    def _train_epoch(self, epoch: int, position: int) -> float:
        nitro, parts = self.nitro, self.nitro.parts
        split = parts.splits["train"]
        if position == 0:
            self.sums = EpochSums()
        parts.position = position
        fresh = parts.placement.put((np.asarray(position, np.int32), np.zeros((), bool)))
        nitro.carry = nitro.carry._replace(position=fresh[0], stopped=fresh[1])
        nitro.set_phase(Phase(PhaseName.TRAINING))
        Progress.call(
            "begin", "train", (split.batches - position) // self.plan.accum, epoch, parts.experiment.max_epochs
        )
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
        assert split.resident is not None
        self.inputs["order"] = parts.placement.put(np.asarray(split.resident.indices(epoch, parts.seed)))
        nothing: tuple[Any, ...] = ()
        pending: _Pending | None = None
        for at in range(position, split.batches, self.plan.accum):
            pending = self._step("resident", nothing, nothing, at, pending)
            if self._boundary(epoch, pending):
                pending = None
            if self.nitro.stop.pending():
                break
        self._finish(pending, epoch)

    def _streamed_steps(self, epoch: int, position: int) -> float:
        parts, accum = self.nitro.parts, self.plan.accum
        split = parts.splits["train"]
        pending: _Pending | None = None
        with split.stream(
            epoch=epoch,
            seed=parts.seed,
            start=position,
            state=parts.stream_state if position else None,
            prepare=self._prepare(),
            device_fields=parts.routing.device_fields,
        ) as stream:
            items = iter(stream)
            at = position
            while at < split.batches:
                group = tuple(_take(items, split.name, at + i) for i in range(accum))
                signature = group[0].device[0] if accum == 1 else tuple(item.device[0] for item in group)
                batches = tuple(item.device[1] for item in group)
                parts.stream_state = group[-1].state
                hosts = tuple(item.host for item in group) if parts.keep_host_batches else ()
                pending = self._step(signature, batches, hosts, at, pending)
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

    def _step(
        self, signature: Any, batches: tuple[Any, ...], hosts: tuple[Any, ...], position: int, pending: _Pending | None
    ) -> _Pending:
        """Dispatch one optimizer step, then read the one before it."""
        nitro = self.nitro
        if nitro.step // BLOCK != self._block:
            self.refresh_rows()
        if self.plan.shares_wishes:
            self.inputs["wishes"] = self._wishes()
        program = self.programs.get(signature)
        if program is None:
            program = self._compile(signature, batches)
        nitro.carry, readback, outputs = program(nitro.carry, batches, self.inputs)
        nitro.parts.step += 1
        self.steps_dispatched += 1
        nitro.parts.position = position + self.plan.accum
        current = _Pending(batches, nitro.step, position, readback, outputs, hosts)
        self._finish(pending, nitro.epoch)
        return current

    def _compile(self, signature: Any, batches: tuple[Any, ...]) -> Program:
        nitro = self.nitro
        args = (nitro.carry, batches, self.inputs)
        self._decide_accumulation(args)
        program = nitro.compile("train", build_train_step(self.plan), args, donate_argnums=(0,))
        self.session.note_train_shape(signature, self.programs, program)
        self.programs[signature] = program
        return program

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
        nitro = self.nitro
        hyper = nitro.parts.hyper
        self._previous = self._logged
        self._block = nitro.step // BLOCK
        table = hyper.table(self._block * BLOCK + 1, BLOCK)
        self.inputs["rows"] = nitro.parts.placement.put(table)
        self._logged = {}
        if nitro.parts.experiment.autolog_schedules:
            self._logged = {name: table[:, column].astype(np.float64).tolist() for name, column in hyper.log_columns()}

    def device_changed(self) -> None:
        """A Device field was set on the live handle."""
        self.inputs["device"] = dict(self.nitro.parts.device)

    def _boundary(self, epoch: int, pending: _Pending) -> bool:
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
        return True

    def _finish(self, pending: _Pending | None, epoch: int) -> None:
        """Read a step's numbers, act on a non-finite one, count and log it."""
        if pending is None:
            return
        numbers = np.asarray(pending.readback)
        loss = float(numbers[0])
        if self.plan.check_divergence and not numbers[1]:
            self._diverged(pending, epoch, loss)
        first = 2
        if self.plan.shares_wishes:
            first = 3
            self.nitro.stop.agree(int(numbers[2]) % SAVE)
            self._save_wished = self._save_wished or numbers[2] >= SAVE
        self.steps_finished += 1
        self.sums.total += loss
        self.sums.count += 1
        nitro = self.nitro
        e = nitro.parts.experiment
        Progress.units(1, {"loss": loss})
        if self.session.recorder.logger is None or pending.step % e.log_every_n_steps:
            return
        line = {"loss": loss}
        names = self.plan.names.names
        for name, value in zip(names[first:], numbers[first:].tolist(), strict=True):
            line[name] = value
        if self.plan.outputs_to_host:
            line.update(self.session.host_train_metrics(pending.outputs, pending.hosts[-1]))
        at = (pending.step - 1) % BLOCK
        for name, values in self._logged_for(pending.step).items():
            line[name] = values[at]
        self.session.log_metrics(line, step=pending.step, epoch=epoch, context="train")

    def _logged_for(self, step: int) -> Mapping[str, list[float]]:
        """Schedule values by step; a block's last step is read when the next block's table is already there."""
        return self._logged if (step - 1) // BLOCK == self._block else self._previous

    def _diverged(self, pending: _Pending, epoch: int, loss: float) -> None:
        nitro = self.nitro
        accum = self.plan.accum
        batch = pending.position if accum == 1 else f"{pending.position} to {pending.position + accum - 1}"
        nitro.parts.step = pending.step - 1
        nitro.parts.position = pending.position
        what = f"the loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite (the loss is)"
        raise DivergenceError(
            f"training diverged: {what}",
            where=f"step {pending.step}, epoch {epoch}, batch {batch}",
            why=f"{self._located(pending)}. The step was not applied: the weights in hand are the last good ones",
            fix="resume from the last checkpoint with a lower learning rate or clipping (gradient_clip_norm), or look "
            "at the batch named; check_divergence = false trains on",
        )

    def _located(self, pending: _Pending) -> str:
        """Where the step went wrong, by replaying it; a replay that fails says so instead of hiding the error."""
        if self.plan.manual:
            return "the step is the experiment's own, so it is not taken apart"
        nitro = self.nitro
        put = nitro.parts.placement.put
        step, position = put((np.int32(pending.step - 1), np.int32(pending.position)))
        carry = nitro.carry._replace(position=position, step=step)
        inputs = {**self.inputs, "rows": nitro.parts.hyper.table((pending.step - 1) // BLOCK * BLOCK + 1, BLOCK)}
        with Progress.phase("locating the divergence"):
            try:
                found = locate_divergence(self.plan, carry, pending.batches, inputs)
                return f"the first value that is not finite is {found}"
            except Exception as error:
                return f"replaying the step to find the place failed: {type(error).__name__}: {error}"

    def _close_epoch(self, epoch: int, wait: float) -> bool:
        """Validation, stop rules, schedule feedback, logging, checkpoint; True to stop early."""
        metrics = self.session.validate_epoch()
        stop = self.session.should_stop(epoch, metrics)
        if self.session.observe(epoch, metrics):
            self.refresh_rows()
        self.session.close_epoch(epoch, self.sums, metrics, wait, stop_reason="early_stop" if stop else None)
        self._last_saved = time.monotonic()
        return stop


def _take(items: Iterator[Any], split: str, index: int) -> Any:
    try:
        return next(items)
    except StopIteration:
        raise DataError(
            f"split {split!r} ended before batch {index}",
            why="it yielded fewer batches than its length says",
            fix="make len(source) the number of batches it yields",
        ) from None
