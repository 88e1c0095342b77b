"""The training loop: epochs of compiled steps, read back one dispatch late.

The device never waits for the host: while one dispatch runs, the host reads the one before it. Over resident data a
dispatch holds several steps, otherwise one.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import numpy as np

from nitro_cli.data import StreamItem
from nitro_cli.errors import DataError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import MOST_STEPS, Pair, Program
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.dispatch import Burst, Pending
from nitro_cli.run.divergence_error import divergence_error
from nitro_cli.run.events import Diverged, EpochBegan, EpochDone, SaveDue, StepsDone, Stopped, TrainEvent
from nitro_cli.run.host_train_metrics import host_train_metrics
from nitro_cli.run.plan import Plan
from nitro_cli.run.state import RunState
from nitro_cli.run.stepping import Stepper, signature_of
from nitro_cli.run.stoppable_data import DataStopped, next_batch, until_stopped
from nitro_cli.run.stopping import StopRequest

__all__ = ["train_events"]

SAVE = 8
"""Added to what a process asks the others for when a save is due; below it are the causes of a stop."""

NOTHING = np.empty((0, 0), np.float32)
Events = Generator[tuple[TrainEvent, RunState], None, None]
StepEvents = Generator[tuple[TrainEvent, RunState], None, float]
"""Events of an epoch's steps; returns the seconds that were spent waiting for data."""


def train_events(plan: Plan, state: RunState, compiler: Compiler, stop: StopRequest) -> Events:
    """Train, telling every event with the state after it.

    After `EpochDone` the epoch counts as closed; `Stopped` and `Diverged` are the last events of a run that ends
    before its last epoch. Schedules whose values changed, and Device fields that were set, hold from the next dispatch.

    Args:
        plan: of the run.
        state: where it stands; its arrays are given to the first step.
        compiler: of the run.
        stop: asked before every dispatch whether the run stops.

    Yields:
        An event, and the state of the run, whose arrays are valid until the next event is asked for.

    Raises:
        DataError: the train split gave other batches than its length says, or what its source raised.
    """
    yield from _Loop(plan, state, compiler, stop).events()


class _Divergence(Exception):
    """A step diverged; the loop's state is the one before it, and `read` what was taken of its dispatch."""

    def __init__(self, pending: Pending, loss: float, read: StepsDone) -> None:
        self.pending = pending
        self.loss = loss
        self.read = read


class _Loop:
    def __init__(self, plan: Plan, state: RunState, compiler: Compiler, stop: StopRequest) -> None:
        self.plan = plan
        self.state = state
        self.stop = stop
        self.stepper = Stepper(plan, compiler, state.position.steps_per_dispatch)
        self.burst = Burst(1)
        self._pending: Pending | None = None
        self._last_saved = time.monotonic()
        self._save_wished = False
        self._wait = 0.0
        # Asked at every step.
        self._batches = plan.splits["train"].batches
        self._save_every = plan.experiment.checkpoint_every_n_steps
        self._save_minutes = plan.experiment.checkpoint_every_minutes
        if self.stepper.step_plan.shares_wishes:
            stop.share()

    def events(self) -> Events:
        last, position = self.plan.experiment.max_epochs, self.state.position
        epoch, batch = (position.epoch + 1, 0) if position.closed else (position.epoch, position.batch)
        while epoch <= last:
            try:
                yield from self._epoch(epoch, batch)
            except _Divergence as found:
                yield found.read, self.state
                step_plan, inputs = self.stepper.step_plan, self.stepper.inputs
                error = divergence_error(self.plan, self.state, step_plan, inputs, found.pending.batches, found.loss)
                yield Diverged(error), self.state
                return
            if self.stop.pending(self.state.position.step):
                yield Stopped(), self.state
                return
            yield EpochDone(epoch, self._wait), self.state
            self.state = self.state.closed()
            self._last_saved = time.monotonic()
            if self.stop.pending(self.state.position.step) and epoch < last:
                yield Stopped(), self.state
                return
            epoch, batch = epoch + 1, 0

    def _epoch(self, epoch: int, batch: int) -> Events:
        accum = self.stepper.step_plan.accum
        self.state = self.stepper.entered(self.state, epoch, batch)
        yield EpochBegan(epoch, self.plan.splits["train"].batches // accum, batch // accum), self.state
        self.burst.pause()
        started = time.perf_counter()
        waited = yield from self._resident() if self.stepper.resident else self._streamed()
        elapsed = time.perf_counter() - started
        self._wait = waited / elapsed if elapsed > 0 else 0.0

    def _resident(self) -> StepEvents:
        split = self.plan.splits["train"]
        while self.state.position.batch < split.batches:
            program = self.stepper.ready(self.state, (), (), self._wish())
            yield self._dispatch(program, (), (), self._count(split.batches - self.state.position.batch))
            yield from self._save_if_due()
            if self.stop.pending(self.state.position.step):
                break
        yield from self._flush()
        return 0.0

    def _streamed(self) -> StepEvents:
        split, hooks, position = self.plan.splits["train"], self.plan.hooks, self.state.position
        with (
            split.stream(
                epoch=position.epoch,
                seed=self.plan.settings.seed,
                start=position.batch,
                state=position.stream_state if position.batch else None,
                prepare=self.stepper.prepare_batch,
                device_fields=hooks.routed.device_fields,
                ahead=not self.plan.placement.on_host,
            ) as stream,
            until_stopped(stream, self.stop, split.name, patience=0.0) as items,
        ):
            try:
                while (at := self.state.position.batch) < split.batches:
                    group = tuple(next_batch(items, split.name, at + i) for i in range(self.stepper.step_plan.accum))
                    yield self._taken(group)
                    # The names would keep the batches alive while the next are awaited.
                    del group
                    yield from self._save_if_due()
                    if self.stop.pending(self.state.position.step):
                        break
                else:
                    for extra in items:
                        raise DataError(
                            f"split 'train' gave batch {extra.index + 1}, its length says {split.batches}",
                            fix="make len(source) the number of batches it yields",
                        )
            except DataStopped:
                pass  # the step before is the last: the run stops there
            yield from self._flush()
            return stream.wait_seconds

    def _taken(self, group: tuple[StreamItem, ...]) -> tuple[TrainEvent, RunState]:
        """Dispatch the step of these micro-batches."""
        batches = tuple(item.device[1] for item in group)
        program = self.stepper.ready(self.state, signature_of([item.device for item in group]), batches, self._wish())
        hosts = tuple(item.host for item in group) if self.stepper.step_plan.outputs_to_host else ()
        return self._dispatch(program, batches, hosts, 1, group[-1].state)

    def _dispatch(
        self, program: Program, batches: tuple[Any, ...], hosts: tuple[Any, ...], count: int, stream_state: Any = None
    ) -> tuple[TrainEvent, RunState]:
        """Dispatch `count` optimizer steps, then read those before them."""
        if self.stepper.several and self.burst.most == 1:
            self.burst = Burst(MOST_STEPS)
        before, pending = self.state.position, self._pending
        self.state, numbers, outputs = self.stepper.take(self.state, program, batches, count, stream_state)
        self._pending = Pending(batches, before, count, numbers, outputs, hosts)
        return self._read(pending), self.state

    def _flush(self) -> Events:
        """Read what is dispatched and not read yet."""
        pending, self._pending = self._pending, None
        if pending is not None:
            yield self._read(pending), self.state

    def _read(self, pending: Pending | None) -> StepsDone:
        """Read the numbers of dispatched steps, act on one that ends the run, and sum them up."""
        if pending is None:
            return StepsDone(self.state.position.step + 1, NOTHING)
        rows, step_plan = pending.rows(), self.stepper.step_plan
        if self.stepper.several:
            self.burst.finished(pending.count)
        layout, before = step_plan.names.layout, pending.before
        host = self._host_metrics(pending) if pending.hosts else {}
        at, good = self.state.position.read(layout, rows, host)
        if step_plan.shares_wishes:
            for wish in rows[:good, layout.WISH]:
                self.stop.agree(int(wish) % SAVE)
                self._save_wished = self._save_wished or wish >= SAVE
        if good < len(rows):
            step, batch = before.step + good, before.batch + good * step_plan.accum
            at = at._replace(step=step, batch=batch, stream_state=before.stream_state)
        self.state = self.state.at(self.state.train, at)
        read = StepsDone(before.step + 1, rows[:good], layout, self.stepper.rows.logged, host)
        if good < len(rows):
            raise _Divergence(pending, float(rows[good][0]), read)
        return read

    def _host_metrics(self, pending: Pending) -> dict[str, Pair]:
        """The train metrics of the one step of a dispatch, where they run on the host."""
        view, taken = self.state.host_view(), {"loss", *self.stepper.step_plan.names.layout.names}
        return host_train_metrics(self.plan.hooks.routed, view, pending.outputs, pending.hosts, taken)

    def _count(self, batches: int) -> int:
        """Steps of the next dispatch: up to the end of the epoch, of the hyperparameters' block, or a checkpoint."""
        if not self.stepper.several:
            return 1
        step, every = self.state.position.step, self.plan.experiment.checkpoint_every_n_steps
        count = min(self.burst.size, batches // self.stepper.step_plan.accum, BLOCK - step % BLOCK)
        if self.stop.last_step is not None:
            count = max(1, min(count, self.stop.last_step - step))
        return count if every is None else min(count, every - step % every)

    def _wish(self) -> int:
        """What this process asks the others for: a stop, by its cause, and beside it a save whose time has come."""
        if not self.stepper.step_plan.shares_wishes:
            return 0
        return self.stop.wish() + (SAVE if self._minutes_over() else 0)

    def _minutes_over(self) -> bool:
        minutes = self._save_minutes
        return minutes is not None and time.monotonic() - self._last_saved >= minutes * 60

    def _save_if_due(self) -> Events:
        """Tell when a checkpoint inside the epoch is due, everything read."""
        position, every = self.state.position, self._save_every
        if position.batch >= self._batches:
            return
        due = every is not None and position.step % every == 0
        if not (due or (self._save_wished if self.stepper.step_plan.shares_wishes else self._minutes_over())):
            return
        yield from self._flush()
        self._last_saved = time.monotonic()
        self._save_wished = False
        yield SaveDue(), self.state
        self.burst.pause()
