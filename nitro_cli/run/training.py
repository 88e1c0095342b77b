"""One `train()`: the run on disk, the loop, stop rules, and how it ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nitro_cli.checkpoints import check_stop_counters
from nitro_cli.distributed import barrier
from nitro_cli.errors import HookError, NotFoundError, warn
from nitro_cli.experiment import Average, EarlyStopping, StopRule, own_store
from nitro_cli.metrics import History, check_scalar, encode_row
from nitro_cli.programs import Program, host_scalars
from nitro_cli.run.facts import program_facts
from nitro_cli.run.loop import EpochSums, TrainLoop
from nitro_cli.run.phases import Phase, PhaseName
from nitro_cli.run.progress import Progress
from nitro_cli.run.recording import Recorder, RunPlace, continued_run
from nitro_cli.run.restore import load_source, with_weights
from nitro_cli.run.signals import signals
from nitro_cli.run.step_plan import step_plan
from nitro_cli.run.stopping import EarlyStop
from nitro_cli.text import message_of

if TYPE_CHECKING:
    from nitro_cli.run.handle import Nitro

__all__ = ["TrainingSession"]


class TrainingSession:
    """Trains one handle, writing its run.

    The loop asks the session for everything that is not a step: validation, stop rules, logging, saving.
    """

    def __init__(self, nitro: Nitro, before: TrainingSession | None) -> None:
        """Take over or make the run on disk.

        Args:
            nitro: the handle to train.
            before: the session of the handle's last `train()`, whose run and counters this one continues.
        """
        self.nitro = nitro
        self._shapes_told = False
        self._saved_at: tuple[int, int] | None = None
        self._told: set[str] = set()
        self._stop_rule = self._build_stop_rule()
        if before is None:
            self._continue_record()
        elif before._stop_rule is not None:
            self._stop_rule = before._stop_rule
        own_run = before.run_id if before is not None else None
        self._ended = self._end_reason()
        self._compiled = False
        self._closing = threading.Lock()
        self._place: RunPlace | None = None
        self._recorder: Recorder | None = None
        self._loop: TrainLoop | None = None
        self._signals = signals(self)
        if self._ended is not None and own_run is None and continued_run(nitro.parts.source, nitro.run_dir) is None:
            return
        with self._signals.entered_until_error():
            try:
                # A signal that is held back while the run is made is answered where the run can be removed again.
                with self._signals.shielded():
                    self._place = RunPlace.open(nitro, own_run)
                self._recorder = Recorder.open(nitro, self._place)
                self._loop = TrainLoop(nitro, self, step_plan(nitro.parts))
                # Until `run` can remove it again.
                self._between = self._signals.shielded()
                self._between.__enter__()
            except BaseException as error:
                self._failed(error)
                raise

    @property
    def recorder(self) -> Recorder:
        """The run on disk."""
        assert self._recorder is not None
        return self._recorder

    @property
    def logger(self) -> Any:
        """The live logger, or None."""
        return self._recorder.logger if self._recorder is not None else None

    @property
    def run_id(self) -> str | None:
        """The id of the run; None where there was nothing to train and no run was made for it."""
        return self._place.store.id if self._place is not None else None

    @property
    def run_path(self) -> Path | None:
        """The directory of the run, or None likewise."""
        return self._place.store.path if self._place is not None else None

    def run(self) -> str:
        """Train, and leave the run in the state that how it ended asks for; return the stop reason."""
        try:
            reason = self._trained()
            if self._loop is not None:
                self.nitro.set_phase(Phase(PhaseName.DONE))
        finally:
            # After the monitors heard how it ended: they may look at the data once more.
            self.nitro.release()
        return reason

    def _trained(self) -> str:
        """Train and close the run; it is closed as failed, or removed, whatever goes wrong."""
        nitro, loop = self.nitro, self._loop
        try:
            if loop is None:
                assert self._ended is not None
                return self._ended
            self._between.__exit__(None, None, None)
            if self._ended is None:
                nitro.stop.limit(nitro.parts.experiment.max_time)
                self.recorder.log_changes(nitro)
                nitro.parts.weights_step = None
            reason = self._ended or loop.run()
            self._close(reason)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._signals.leave()
        return reason

    def _end_reason(self) -> str | None:
        """Why there is nothing to train, if so: a record already at its end. What to change is said."""
        nitro, e = self.nitro, self.nitro.parts.experiment
        source = nitro.parts.source
        meta = source.resumed if source is not None else None
        if nitro.epoch > e.max_epochs or (nitro.epoch == e.max_epochs and nitro.parts.epoch_closed):
            _say(f"the run is already at epoch {nitro.epoch} of max_epochs = {e.max_epochs}: raise max_epochs to go on")
            return (meta.stop_reason if meta is not None else None) or "completed"
        if meta is not None and meta.stop_reason == "early_stop" and self._exhausted():
            _say(
                f"the run stopped early at epoch {nitro.epoch}, and the rule has not changed: raise "
                "early_stop.patience or unset early_stop to go on"
            )
            return "early_stop"
        return None

    def _exhausted(self) -> bool:
        rule = self._stop_rule
        return isinstance(rule, EarlyStop) and rule.wait >= rule.rule.patience

    # What the signals ask for

    def stop_asked(self, cause: str) -> bool:
        """A first signal: from the first step on the run stops at the next boundary, before that it just leaves."""
        self.nitro.stop.ask(cause)
        if self._compiled:
            self.nitro.stop.hurry()
        return self._compiled

    def abandon(self) -> str:
        """The process ends now: remove a run that has finished no step; what was committed is whole as it is."""
        place = self._place
        if place is None:
            return "there was nothing to save"
        if not self._worth_keeping():
            if self._closing.acquire(timeout=1):
                place.store.discard()
            return "there was nothing to save, and no run is left behind"
        return f"the last checkpoint committed in {place.store.path} is whole"

    def _worth_keeping(self) -> bool:
        place, loop = self._place, self._loop
        return place is not None and (place.continued or (loop is not None and loop.steps_finished > 0))

    def _failed(self, error: BaseException) -> None:
        """Leave the run as an error, or interrupted as it is; one that never finished a step is removed, and told."""
        self.nitro.set_phase(Phase(PhaseName.FAILED))
        Progress.call("done", "")
        # A hook may raise what Python ends a process with; only a signal interrupts.
        interrupted = self._signals.heard and not isinstance(error, Exception)
        with self._closing, self._signals.shielded():
            place, recorder = self._place, self._recorder
            if place is None or place.store.closed:
                return
            try:
                if not self._worth_keeping():
                    if recorder is not None:
                        recorder.discard()
                    place.store.discard()
                    self._place = self._recorder = None
                    if isinstance(error, Exception):
                        _say(f"the run {place.store.id} had finished no step and is removed")
                elif recorder is not None:
                    recorder.close(None if interrupted else "error")
                else:
                    place.store.close()
            except Exception as also:
                if also is not error:
                    _say(f"the run could not be closed: {message_of(also)}")

    def _close(self, reason: str) -> None:
        nitro = self.nitro
        with self._closing, self._signals.shielded(), Progress.phase("saving"):
            self.recorder.close(reason, nitro if reason == "requested" else None)
        barrier()
        nitro.state_saved = self._saved_at == (nitro.step, nitro.parts.position)
        Progress.call("done", f"{reason}: {nitro.epoch}/{nitro.parts.experiment.max_epochs} epochs")

    # What the loop asks for

    def validate_epoch(self) -> dict[str, Any]:
        """Metrics of the val split after an epoch; empty without one."""
        nitro = self.nitro
        if "val" not in nitro.parts.splits:
            return {}
        nitro.metrics = nitro.evaluate_in_training("val")
        return nitro.metrics

    def should_stop(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Ask the stop rule; without validation it is never asked."""
        if self._stop_rule is None or not metrics:
            return False
        return bool(self._stop_rule.should_stop(epoch, metrics))

    def observe(self, epoch: int, metrics: Mapping[str, Any]) -> bool:
        """Feed the epoch's metrics to plateau schedules; True when a value changed."""
        if not metrics:
            return False
        announcements = self.nitro.parts.hyper.observe(epoch, metrics)
        for text in announcements:
            Progress.call("line", text)
        return bool(announcements)

    def close_epoch(
        self, epoch: int, sums: EpochSums, metrics: Mapping[str, Any], wait: float, *, stop_reason: str | None
    ) -> None:
        """Log the epoch, add its history row, write its checkpoint."""
        nitro, recorder = self.nitro, self.recorder
        parts = nitro.parts
        self._check_monitor(metrics)
        step = nitro.step
        recorder.check_in_place()
        if recorder.logger is not None:
            if metrics:
                self.log_metrics(
                    {**metrics, **parts.hyper.plateau_scales()}, step=step, epoch=epoch, context="validate"
                )
            self.log_metrics({"data/wait_frac": wait}, step=step, epoch=epoch, context="data")
        row = {"epoch": epoch, "step": step, "train_loss": sums.mean, **metrics}
        nitro.history.append(row)
        recorder.history.write(encode_row(row))
        parts.epoch_closed = True
        if stop_reason is None and epoch >= parts.experiment.max_epochs:
            stop_reason = "completed"
        self._save(sums, metrics=metrics, resume_point=False, stop_reason=stop_reason)

    def save_resume_point(self, sums: EpochSums, *, stop_reason: str | None = None) -> None:
        """Write where training is, unscored, whatever retention says."""
        if self._saved_at != (self.nitro.step, self.nitro.parts.position):
            self._save(sums, metrics={}, resume_point=True, stop_reason=stop_reason)

    def _save(
        self, sums: EpochSums, *, metrics: Mapping[str, Any], resume_point: bool, stop_reason: str | None
    ) -> None:
        nitro = self.nitro
        if nitro.parts.experiment.checkpointer is None:
            return
        before = nitro.phase
        nitro.set_phase(Phase(PhaseName.CHECKPOINTING))
        written = self.recorder.save(
            nitro,
            sums,
            rules=self._rule_states(),
            metrics=metrics,
            resume_point=resume_point,
            stop_reason=stop_reason,
        )
        if written:
            self._saved_at = (nitro.step, nitro.parts.position)
        if before.name is PhaseName.TRAINING and resume_point:
            nitro.set_phase(before)

    def _check_monitor(self, metrics: Mapping[str, Any]) -> None:
        """The monitored metric must be there every epoch; a non-finite one counts as a bad epoch."""
        monitor = self.nitro.parts.monitor
        if monitor is None or not metrics:
            return
        value = check_scalar(metrics.get(monitor.metric), f"monitor {monitor.metric!r}", metrics)
        if not math.isfinite(value):
            warn(f"{monitor.metric} is {value} at epoch {self.nitro.epoch}: a bad epoch for every rule that follows it")

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """One line of the log."""
        if self.recorder.logger is not None:
            self.recorder.logger.log_metrics(metrics, step=step, epoch=epoch, context=context)

    def host_train_metrics(
        self, outputs: Any, batches: Sequence[Mapping[str, np.ndarray]], taken: Collection[str]
    ) -> dict[str, float]:
        """Train metrics that run on the host: the means over the micro-batches of a step.

        Args:
            outputs: of every micro-batch, stacked on a first axis.
            batches: the micro-batches, on the host.
            taken: names the step's line has already.

        Raises:
            HookError, MetricError: the hook returned no mapping of names to real numbers, or other names than before.
        """
        parts = self.nitro.parts
        view, outputs = parts.host_view(), jax.tree.map(np.asarray, outputs)
        found = []
        for index, batch in enumerate(batches):
            mine = jax.tree.map(lambda leaf, index=index: leaf[index], outputs)
            returned = parts.routing.call(view, "train_metrics", mine, batch=batch)
            found.append(host_scalars(returned, "train_metrics", taken))
            if found[-1].keys() != found[0].keys():
                raise HookError(
                    f"`train_metrics` returned {', '.join(found[-1])} for micro-batch {index + 1}, "
                    f"{', '.join(found[0])} for the first",
                    why="the line of a step has the means over its micro-batches",
                    fix="return the same names for every batch",
                )
        return {name: sum(one[name] for one in found) / len(found) for name in found[0]}

    def note_train_shape(self, signature: Any, known: Mapping[Any, Program], program: Program) -> None:
        """Say once that batches of another shape cost another compile, naming what differed."""
        self._compiled = True
        if known and not self._shapes_told:
            self._shapes_told = True
            first = next(iter(known))
            changed = [
                f"{a[0]}: {a[1]} {a[2]} before, {b[1]} {b[2]} now"
                for a, b in zip(first, signature, strict=False)
                if a != b
            ]
            warn(
                "the training program is compiled again for a batch of another shape: "
                + ("; ".join(changed) or f"{first} before, {signature} now")
            )

    def note_compiled(self, purpose: str) -> None:
        """Add a program's cost to the run's record and log, once per purpose."""
        if purpose in self._told:
            return
        self._told.add(purpose)
        if self._recorder is None:
            return
        self.recorder.write_run_json(self.nitro)
        if self.recorder.logger is not None:
            self.recorder.logger.log_other(f"program/{purpose}", program_facts(self.nitro.programs[purpose]))

    def device_changed(self) -> None:
        """A Device field of the live handle has a new value."""
        if self._loop is not None:
            self._loop.device_changed()

    def restore_best(self, wanted: bool | Average) -> str | None:
        """End holding the best checkpoint's weights, or an `Average`'s, if asked; returns what they are, or None."""
        if not wanted:
            return None
        nitro = self.nitro
        if self._recorder is None:
            _say("restore_best: there was nothing to train, the weights stay as they are")
            return None
        store = own_store(nitro.parts.experiment.checkpointer)
        spec = (self.recorder.store.id, "best" if wanted is True else wanted)
        try:
            source = load_source(spec, None, root=nitro.run_dir, selection=nitro.parts.selection, store=store)
        except NotFoundError as error:
            _say(f"restore_best: {error.what}; the final weights stay")
            return None
        assert source is not None
        nitro.carry = with_weights(nitro.carry, source, nitro.parts.placement)
        nitro.parts.weights_step = source.record.meta.step
        nitro.checkpoint_source = source.text
        return source.text

    def best(self) -> dict[str, Any] | None:
        """Score, metric, mode and path of the best checkpoint of the run, or None."""
        return self._recorder.best(self.nitro) if self._recorder is not None else None

    # Rules and their counters

    def _build_stop_rule(self) -> StopRule | None:
        parts = self.nitro.parts
        rule = parts.experiment.early_stop
        if isinstance(rule, EarlyStopping):
            watched = rule.watched(parts.monitor)
            assert watched is not None  # setup refuses a rule with nothing to go by
            return EarlyStop(rule, watched.metric, watched.mode)
        return rule

    def _rule_states(self) -> dict[str, Any]:
        """The counters of the stop rule and of plateaus, for the record."""
        ask = getattr(self._stop_rule, "state", None)
        return {"early_stop": ask() if ask is not None else None, "schedules": self.nitro.parts.hyper.state()}

    def _continue_record(self) -> None:
        """Take counters and history from the record that a resume starts from."""
        source = self.nitro.parts.source
        meta = source.resumed if source is not None else None
        if source is None or meta is None:
            return
        held = meta.rules.early_stop
        rule = self._stop_rule
        if rule is not None and not hasattr(rule, "load_state"):
            _say(f"the stop rule {type(rule).__name__} has no load_state: its counters start fresh on this resume")
        elif rule is not None and held is not None:
            if isinstance(rule, EarlyStop):
                check_stop_counters(held, source.text)
            rule.load_state(held)
        for row in History.from_json_rows(meta.history, origin=f"{source.text}: history"):
            self.nitro.history.append(row)


def _say(text: str) -> None:
    warn(text)
