"""The training loop: epochs of compiled steps, whose numbers are read once they are there.

The device does not wait for the host: while it works the host reads what is ready, and waits only where too much is
unread. A dispatch holds several steps over resident data and over windows of batches, otherwise one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from typing import Any

import numpy as np

from nitro_cli.data import StreamItem, WindowItem
from nitro_cli.errors import DataError
from nitro_cli.optim import BLOCK
from nitro_cli.programs import BatchWindow, Pair, Program
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.dispatch import Burst, Pending
from nitro_cli.run.divergence_error import divergence_error
from nitro_cli.run.events import Diverged, EpochBegan, EpochDone, SaveDue, StepsDone, Stopped, TrainEvent
from nitro_cli.run.host_train_metrics import host_train_metrics
from nitro_cli.run.plan import Plan
from nitro_cli.run.producing import Producing
from nitro_cli.run.state import RunState
from nitro_cli.run.stepping import WINDOW, Stepper, signature_of
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
        self._pending: deque[Pending] = deque()
        self._producing = Producing(plan.splits["train"], plan.placement.on_host)
        self._last_saved = time.monotonic()
        self._save_wished = False
        self._wait = 0.0
        # Asked at every step.
        self._batches = plan.splits["train"].batches
        self._save_every = plan.experiment.checkpoint_every_n_steps
        self._save_minutes = plan.experiment.checkpoint_every_minutes
        # Processes learn of a wish from what they read, so all read the same step at the same time.
        self._reads_ready = not self.stepper.step_plan.shares_wishes
        # Batches that were moved have their room on the device only until the next is moved.
        self._unread = 2 if plan.placement.on_host else 1
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
        self.stepper.settle(self.state)
        if self.burst.most != self.stepper.most:
            self.burst = Burst(self.stepper.most)
        self.burst.pause()
        started = time.perf_counter()
        waited = yield from self._resident() if self.stepper.resident else self._streamed()
        elapsed = time.perf_counter() - started
        self._wait = waited / elapsed if elapsed > 0 else 0.0
        self.stepper.tell_size(self.burst.size)

    def _resident(self) -> StepEvents:
        split = self.plan.splits["train"]
        while self.state.position.batch < split.batches:
            program = self.stepper.ready(self.state, (), (), self._wish())
            yield from self._dispatch(program, (), min(self.burst.size, self._count(split.batches)))
            yield from self._save_if_due()
            if self.stop.pending(self.state.position.step):
                break
        yield from self._flush()
        return 0.0

    def _streamed(self) -> StepEvents:
        waited, again = 0.0, True
        while again:
            more, again = yield from self._pass()
            waited += more
        yield from self._flush()
        return waited

    def _pass(self) -> Generator[tuple[TrainEvent, RunState], None, tuple[float, bool]]:
        """Steps over the batches of the epoch; returns the seconds waited, and whether to go on by another stream."""
        split, hooks, position = self.plan.splits["train"], self.plan.hooks, self.state.position
        accum, again = self.stepper.step_plan.accum, False
        self._producing.pause()
        with (
            split.stream(
                epoch=position.epoch,
                seed=self.plan.settings.seed,
                start=position.batch,
                state=position.stream_state if position.batch else None,
                prepare=self.stepper.prepare_batch,
                device_fields=hooks.routed.device_fields,
                ahead=not self.plan.placement.on_host,
                windows=self.stepper.windows,
                producers=self._producing.threads,
            ) as stream,
            until_stopped(stream, self.stop, split.name, patience=0.0) as items,
        ):
            try:
                while (at := self.state.position.batch) < split.batches:
                    stream.want(self.burst.size * accum)
                    item = next_batch(items, split.name, at)
                    if isinstance(item, WindowItem):
                        yield from self._window(item)
                    else:
                        group = (item, *(next_batch(items, split.name, at + i) for i in range(1, accum)))
                        yield from self._single(group)
                        del group
                    # The names would keep the batches alive while the next are awaited.
                    del item
                    if self.stop.pending(self.state.position.step):
                        break
                    if self._producing.stepped(stream) and self.state.position.batch < split.batches:
                        again = True
                        break
                else:
                    for extra in items:
                        raise DataError(
                            f"split 'train' gave batch {extra.index + 1}, its length says {split.batches}",
                            fix="make len(source) the number of batches it yields",
                        )
            except DataStopped:
                pass  # the step before is the last: the run stops there
            except Exception:
                if self._reads_ready:
                    yield from self._flush()  # the steps before the failure count, read or not
                raise
            self._producing.ended(stream)
            return stream.wait_seconds, again

    def _window(self, item: WindowItem) -> Events:
        """Dispatch the steps of a window, in as many calls as there are ends of blocks and checkpoints in it."""
        accum, first = self.stepper.step_plan.accum, self.state.position.batch
        window = BatchWindow(item.device, np.int32(first))
        while (taken := self.state.position.batch - first) < item.count:
            program = self.stepper.ready(self.state, WINDOW, window, self._wish())
            count = self._count(first + item.count)
            yield from self._dispatch(program, window, count, states=item.states[taken : taken + count * accum])
            yield from self._save_if_due()
            if self.stop.pending(self.state.position.step):
                break

    def _single(self, group: tuple[StreamItem, ...]) -> Events:
        """Dispatch the step of these micro-batches."""
        self.stepper.take_one_by_one()
        batches = tuple([item.device[1] for item in group])
        program = self.stepper.ready(self.state, signature_of([item.device for item in group]), batches, self._wish())
        hosts = tuple([item.host for item in group]) if self.stepper.step_plan.outputs_to_host else ()
        yield from self._dispatch(program, batches, 1, hosts, tuple([item.state for item in group]))
        yield from self._save_if_due()

    def _dispatch(
        self, program: Program, batches: Any, count: int, hosts: tuple[Any, ...] = (), states: tuple[Any, ...] = ()
    ) -> Events:
        """Dispatch `count` optimizer steps, then read what is ready of those before them."""
        before = self.state.position
        after = states[-1] if states else None
        self.state, numbers, outputs = self.stepper.take(self.state, program, batches, count, after)
        self._pending.append(Pending(batches, before, count, numbers, outputs, hosts, states))
        read = self._due()
        if read is None:
            yield StepsDone(self.state.position.step + 1, NOTHING), self.state
        while read is not None:
            yield self._read(read), self.state
            read = self._due()

    def _due(self) -> Pending | None:
        """The oldest dispatch that is not read, if its numbers are there or too many are waiting."""
        pending = self._pending
        if len(pending) > self._unread or (pending and self._reads_ready and pending[0].ready):
            return pending.popleft()
        return None

    def _flush(self) -> Events:
        """Read what is dispatched and not read yet."""
        while self._pending:
            yield self._read(self._pending.popleft()), self.state

    def _read(self, pending: Pending) -> StepsDone:
        """Read the numbers of dispatched steps, act on one that ends the run, and sum them up."""
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
            taken = good * step_plan.accum
            state = pending.states[taken - 1] if taken and pending.states else before.stream_state
            at = at._replace(step=before.step + good, batch=before.batch + taken, stream_state=state)
            self._pending.clear()
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
        """Steps up to micro-batch `batches`, or to the end of the hyperparameters' block, a checkpoint, or a stop."""
        position, every = self.state.position, self._save_every
        count = min((batches - position.batch) // self.stepper.step_plan.accum, BLOCK - position.step % BLOCK)
        if self.stop.last_step is not None:
            count = max(1, min(count, self.stop.last_step - position.step))
        return count if every is None else min(count, every - position.step % every)

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
        self._producing.pause()
