"""One `train()`: the run on disk taken over or made, signals, the driver, and how the run is left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nitro_cli.distributed import barrier
from nitro_cli.errors import NotFoundError, warn
from nitro_cli.experiment import Average, own_store
from nitro_cli.run.callbacks import CallbackRun, Callbacks
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.driver import Driver
from nitro_cli.run.evaluation import Evaluator
from nitro_cli.run.events import Observer
from nitro_cli.run.phases import Phase, PhaseName, PhaseState
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.recording import Recorder
from nitro_cli.run.restore import load_source, with_weights
from nitro_cli.run.run_place import RunPlace, continued_run
from nitro_cli.run.signals import ServedSignals
from nitro_cli.run.state import RunState
from nitro_cli.run.stopping import StopRequest
from nitro_cli.text import message_of

__all__ = ["Training"]


class Training:
    """Trains a run from where it stands, and writes it.

    Args:
        plan: of the run.
        state: where it stands.
        compiler, evaluator, phases, stop: of the run.
        before: the last training of the same handle, whose run this one continues.
        observers: told of every event.

    Raises:
        LockedError, StorageError: the run's directory cannot be taken.
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
        before: Training | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._plan = plan
        self._state = state
        self._compiler = compiler
        self._phases = phases
        self._stop = stop
        self._closed = False
        self._closing = threading.Lock()
        self._place: RunPlace | None = None
        self._recorder: Recorder | None = None
        self._driver: Driver | None = None
        self._signals = ServedSignals(self)
        self._ended = self._end_reason()
        own_run = before.run_id if before is not None else None
        if self._ended is not None and own_run is None and continued_run(plan.resumed, plan.settings.run_dir) is None:
            return
        self._held_back = contextlib.ExitStack()
        self._callbacks: Callbacks | None = None
        with self._signals.entered_until_error():
            try:
                # A signal that is held back while the run is made is answered where the run can be removed again.
                with self._signals.shielded():
                    self._place = RunPlace.open(plan, own_run)
                self._recorder = Recorder(plan, state, compiler, self._place)
                self._callbacks = self._told(evaluator)
                self._driver = Driver(
                    plan,
                    state,
                    compiler=compiler,
                    evaluator=evaluator,
                    phases=phases,
                    stop=stop,
                    recorder=self._recorder,
                    observers=(*observers, *([self._callbacks] if state.rules.callbacks else [])),
                )
                # Until `run` can remove it again.
                self._held_back.enter_context(self._signals.shielded())
            except BaseException as error:
                self._failed(error)
                raise

    def _told(self, evaluator: Evaluator) -> Callbacks:
        """The callbacks of the run, each with what it sees of it."""
        recorder, place = self._recorder, self._place
        assert recorder is not None
        assert place is not None

        def log(metrics: Any, **words: Any) -> None:
            if recorder.logger is not None:
                recorder.logger.log_metrics(metrics, **words)

        def view(everywhere: bool) -> CallbackRun:
            return CallbackRun(
                self._plan,
                place.store.path,
                everywhere=everywhere,
                stop=self._stop,
                state=lambda: self.state,
                predict=evaluator.predict,
                log=log,
            )

        return Callbacks(self._state.rules.callbacks, view, self._plan)

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._driver.state if self._driver is not None else self._state

    @state.setter
    def state(self, state: RunState) -> None:
        if self._driver is not None:
            self._driver.state = state
        self._state = state

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last validation."""
        return self._driver.metrics if self._driver is not None else {}

    @property
    def state_saved(self) -> bool:
        """Whether the state that the run ended in is in a checkpoint, written to the end."""
        return self._closed and self._driver is not None and self._driver.state_saved

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

    def best(self) -> dict[str, Any] | None:
        """Score, metric, mode and path of the best checkpoint of the run, or None."""
        return self._recorder.best() if self._recorder is not None else None

    def run(self) -> str:
        """Train, and leave the run in the state that how it ended asks for; return the stop reason."""
        driver = self._driver
        if driver is None:
            assert self._ended is not None
            return self._ended
        try:
            self._held_back.close()
            if self._ended is None:
                self._stop.limit(self._plan.experiment.max_time)
                assert self._recorder is not None
                self._recorder.log_changes()
            reason = self._ended or self._driven(driver)
            self._close(reason)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._signals.leave()
        self._phases.set(Phase(PhaseName.DONE))
        return reason

    def _driven(self, driver: Driver) -> str:
        """Train, the callbacks told of the beginning and of the end, however it ends; return the stop reason."""
        callbacks = self._callbacks
        assert callbacks is not None
        try:
            callbacks.start()
            reason = driver.run()
        except Exception:
            callbacks.end("error")
            raise
        callbacks.end(reason)
        return reason

    def _end_reason(self) -> str | None:
        """Why there is nothing to train, if so: a record already at its end. What to change is said."""
        last, position = self._plan.experiment.max_epochs, self._state.position
        resumed = self._plan.resumed
        recorded = resumed.record.meta.stop_reason if resumed is not None else None
        if position.epoch > last or (position.epoch == last and position.closed):
            _say(f"the run is already at epoch {position.epoch} of max_epochs = {last}: raise max_epochs to go on")
            return recorded or "completed"
        if recorded == "early_stop" and self._state.rules.exhausted:
            _say(
                f"the run stopped early at epoch {position.epoch}, and the rule has not changed: raise "
                "early_stop.patience or unset early_stop to go on"
            )
            return "early_stop"
        return None

    # What the signals ask for

    def stop_asked(self, cause: str) -> bool:
        """A first signal: from the first step on the run stops at the next boundary, before that it just leaves."""
        self._stop.ask(cause)
        compiled = "train" in self._compiler.programs
        if compiled:
            self._stop.hurry()
        return compiled

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
        place, driver = self._place, self._driver
        return place is not None and (place.continued or (driver is not None and driver.steps_finished > 0))

    # How the run is left

    def _failed(self, error: BaseException) -> None:
        """Leave the run as an error, or interrupted as it is; one that never finished a step is removed, and told."""
        self._phases.set(Phase(PhaseName.FAILED))
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
        assert self._recorder is not None
        with self._closing, self._signals.shielded(), Progress.phase("saving"):
            self._recorder.close(reason, self._stop.cause if reason == "requested" else None)
        barrier()
        self._closed = True
        epochs = f"{self.state.position.epoch}/{self._plan.experiment.max_epochs}"
        Progress.call("done", f"{reason}: {epochs} epochs")

    def restore_best(self, wanted: bool | Average) -> str | None:
        """End holding the best checkpoint's weights, or an `Average`'s, if asked; returns what they are, or None."""
        if not wanted:
            return None
        if self._recorder is None:
            _say("restore_best: there was nothing to train, the weights stay as they are")
            return None
        settings = self._plan.settings
        spec = (self._recorder.store.id, "best" if wanted is True else wanted)
        store = own_store(settings.experiment.checkpointer)
        try:
            source = load_source(spec, None, root=settings.run_dir, selection=settings.selection, store=store)
        except NotFoundError as error:
            _say(f"restore_best: {error.what}; the final weights stay")
            return None
        assert source is not None
        state = self.state
        self.state = state._replace(
            train=with_weights(state.train, source, self._plan.placement),
            position=state.position._replace(weights_step=source.record.meta.step),
        )
        return source.text


def _say(text: str) -> None:
    warn(text)
