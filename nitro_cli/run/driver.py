"""What follows the events of training, in the written order: validate, stop rules, schedule feedback, log, record."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from nitro_cli.errors import MetricError, warn
from nitro_cli.metrics import encode_row
from nitro_cli.programs import Outcome
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.evaluation import Evaluator
from nitro_cli.run.events import (
    CheckpointBegan,
    Diverged,
    EpochBegan,
    EpochDone,
    EpochRecorded,
    Evaluated,
    Event,
    Observer,
    SaveDue,
    StepsDone,
    Stopped,
    TrainEvent,
)
from nitro_cli.run.loop import train_events
from nitro_cli.run.phases import Phase, PhaseName, PhaseState
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.recording import Recorder
from nitro_cli.run.state import RunState
from nitro_cli.run.stoppable_data import DataStopped
from nitro_cli.run.stopping import StopRequest

__all__ = ["Driver"]

TAKEN = float(Outcome.TAKEN)
"""As it is read back."""


class Driver:
    """Takes a run from where it stands to its end.

    Args:
        plan: of the run.
        state: where it stands.
        compiler, evaluator, phases, stop: of the run.
        recorder: the run on disk.
        observers: told of every event before it is acted on.

    Attributes:
        state: where the run stands, as of the last event.
        steps_finished: steps whose numbers were read.
        metrics: of the last validation.
        saved: the step and micro-batch of the last checkpoint written; None before the first.
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        *,
        compiler: Compiler,
        evaluator: Evaluator,
        phases: PhaseState,
        stop: StopRequest,
        recorder: Recorder,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.state = state
        self.steps_finished = 0
        self.metrics: dict[str, Any] = {}
        self.saved: tuple[int, int] | None = None
        self._plan = plan
        self._compiler = compiler
        self._evaluator = evaluator
        self._phases = phases
        self._stop = stop
        self._recorder = recorder
        self._observers = tuple(observers)
        self._counting = False
        self._told: set[Outcome] = set()
        # Asked at every step.
        self._log_every = plan.experiment.log_every_n_steps

    def run(self) -> str:
        """Train to the end, an early stop or a request; return the stop reason.

        Raises:
            DivergenceError: a loss or gradient is not finite.
        """
        events = train_events(self._plan, self.state, self._compiler, self._stop)
        try:
            with contextlib.closing(events):
                for event, state in events:
                    self.state = state
                    self._tell(event)
                    reason = self._follow(event)
                    if reason is not None:
                        return reason
        except BaseException:
            self._end_count(whole=False)
            raise
        finally:
            self._end_count()
        self._recorder.tell_programs()
        return "completed"

    def _tell(self, event: Event) -> None:
        for observer in self._observers:
            observer.on_event(event, self.state)

    def _follow(self, event: TrainEvent) -> str | None:
        """Act on an event; the stop reason, if the run ends with it."""
        self._recorder.tell_programs()
        if isinstance(event, StepsDone):
            self._read(event)
            return None
        if isinstance(event, EpochBegan):
            self._begin_count(event)
            return None
        if isinstance(event, SaveDue):
            self._save_resume_point()
            return None
        if isinstance(event, Diverged):
            raise event.error
        self._end_count()
        if isinstance(event, Stopped):
            self._save_resume_point()
            return "requested"
        try:
            return "early_stop" if self._close_epoch(event) else None
        except DataStopped:
            self._save_resume_point()
            return "requested"

    # Steps

    def _begin_count(self, event: EpochBegan) -> None:
        self._phases.set(Phase(PhaseName.TRAINING))
        Progress.call("begin", "train", event.steps, event.epoch, self._plan.experiment.max_epochs)
        self._counting = True
        if event.taken:
            Progress.call("step", event.taken, None)

    def _end_count(self, *, whole: bool = True) -> None:
        """Close the count of an epoch's steps; without its loss where an error cut it, which is no epoch to report."""
        if self._counting:
            self._counting = False
            position = self.state.position
            told = whole and position.totals.loss_count
            Progress.call("end", {"loss": position.totals.mean_loss} if told else None)

    def _read(self, event: StepsDone) -> None:
        """Count and log finished steps."""
        count = len(event.numbers)
        if not count:
            return
        logs = self._recorder.logger is not None
        self._tell_left_out(event)
        for index in range(count):
            step = event.first + index
            if logs and not step % self._log_every:
                line = event.line(index)
                if event.scheduled is not None:
                    line.update(event.scheduled(step))
                self._log(line, step=step, context="train")
        self.steps_finished += count
        Progress.units(count, {"loss": float(event.numbers[-1][0])})

    def _tell_left_out(self, event: StepsDone) -> None:
        """Say once of each kind that a step was not taken."""
        outcomes = event.numbers[:, event.layout.OUTCOME].tolist()
        if outcomes.count(TAKEN) == len(outcomes):
            return
        for index in range(len(outcomes)):
            outcome = event.outcome(index)
            if outcome is Outcome.TAKEN:
                continue
            if outcome not in self._told:
                self._told.add(outcome)
                why = (
                    "every entry of its loss is masked"
                    if outcome is Outcome.EMPTY
                    else "its loss or gradient is not finite"
                )
                warn(f"step {event.first + index} is not taken: {why}; the history counts such steps as `skipped`")

    # The end of an epoch

    def _close_epoch(self, event: EpochDone) -> bool:
        """Validation, stop rules, schedule feedback, logging, checkpoint; True to stop early."""
        epoch, rules = event.epoch, self.state.rules
        metrics = self._validate()
        trained = self._trained(metrics)
        stop = rules.should_stop(epoch, metrics, trained)
        for text in rules.observe(epoch, metrics, trained):
            Progress.call("line", text)
        self._record_epoch(event, metrics, trained, "early_stop" if stop else None)
        return stop

    def _validate(self) -> dict[str, Any]:
        """Metrics of the val split after an epoch; empty without one."""
        if "val" not in self._plan.splits:
            return {}
        self._phases.set(Phase(PhaseName.EVALUATING))
        self.metrics = self._evaluator.evaluate("val", self.state, stop=self._stop)
        self._phases.evaluated(self.metrics)
        self._tell(Evaluated("val", self.metrics))
        return {name: value for name, value in self.metrics.items() if value is not None}

    def _record_epoch(
        self, event: EpochDone, metrics: Mapping[str, Any], trained: Mapping[str, Any], stop_reason: str | None
    ) -> None:
        """Log the epoch, add its history row, write its checkpoint."""
        rules = self.state.rules
        judged = rules.monitor.read(event.epoch, {**trained, **metrics}, validated=bool(metrics))
        recorder, step, epoch = self._recorder, self.state.position.step, event.epoch
        recorder.check_in_place()
        if metrics:
            self._log({**metrics, **rules.plateau_scales()}, step=step, context="validate")
        self._log({"data/wait_frac": event.wait}, step=step, context="data")
        row = {"epoch": epoch, "step": step, **trained, **metrics, **({"monitor": judged} if judged else {})}
        self.state.history.append(row)
        recorder.history.write(encode_row(row))
        self.state = self.state.closed()
        self._tell(EpochRecorded(row))
        if stop_reason is None and epoch >= self._plan.experiment.max_epochs:
            stop_reason = "completed"
        score = rules.score(self._plan.settings.selection, metrics, trained)
        self._save(metrics=metrics, score=score, resume_point=False, stop_reason=stop_reason)

    def _trained(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What the row of an epoch has of its training: totals over totals, and the steps that were not taken."""
        totals = self.state.position.totals
        trained = {"train_loss": totals.mean_loss, **totals.row()}
        if totals.mean_loss is None:
            warn(
                f"epoch {self.state.position.epoch} has no train_loss: none of its {totals.skipped} steps was taken, "
                "every entry of the loss was masked or not finite"
            )
        if totals.skipped or totals.terms or self._plan.experiment.check_divergence == "skip":
            trained["skipped"] = totals.skipped
        trained |= self.state.rules.epoch_row({name: over for name, (over, _) in totals.metrics.items()})
        clash = next((name for name in trained if name in metrics), None)
        if clash is not None:
            raise MetricError(
                f"{clash!r} is reported by `metrics` or `finalize_metrics`",
                why="the row of an epoch has the train metrics under such names",
                fix="rename it there, or in `train_metrics`",
            )
        return trained

    def _log(self, metrics: Mapping[str, Any], *, step: int, context: str) -> None:
        if self._recorder.logger is not None:
            self._recorder.logger.log_metrics(metrics, step=step, epoch=self.state.position.epoch, context=context)

    # Checkpoints

    def _save_resume_point(self) -> None:
        """Write where training is, unscored, whatever retention says."""
        if self.saved != self._here:
            self._save(metrics={}, score=None, resume_point=True, stop_reason=None)

    @property
    def _here(self) -> tuple[int, int]:
        return self.state.position.step, self.state.position.batch

    def _save(
        self, *, metrics: Mapping[str, Any], score: float | None, resume_point: bool, stop_reason: str | None
    ) -> None:
        if self._plan.experiment.checkpointer is None:
            return
        before = self._phases.current
        self._phases.set(Phase(PhaseName.CHECKPOINTING))
        words: dict[str, Any] = {"score": score, "resume_point": resume_point, "stop_reason": stop_reason}
        if self._recorder.save(self.state, metrics=metrics, **words):
            self.saved = self._here
            self._tell(CheckpointBegan(self._recorder.checkpoint_path))
        if before.name is PhaseName.TRAINING and resume_point:
            self._phases.set(before)

    @property
    def state_saved(self) -> bool:
        """Whether the state in hand is in a checkpoint."""
        return self.saved == self._here
