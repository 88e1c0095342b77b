"""The callbacks of a run: told what happens, in the order in which they stand."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nitro_cli.analysis import OutputFile, Probabilities
from nitro_cli.distributed import host_array, is_main, process_count
from nitro_cli.errors import ConfigError, HookError, NitroError, warn
from nitro_cli.experiment import Callback, Experiment
from nitro_cli.metrics import History
from nitro_cli.programs import Outcome
from nitro_cli.run.events import CheckpointBegan, EpochBegan, EpochRecorded, Evaluated, Event, StepsDone
from nitro_cli.run.output_meaning import OutputMeaning, meaning_of
from nitro_cli.run.plan import Plan
from nitro_cli.run.prediction_rows import SplitRows, predicted_batches
from nitro_cli.run.predictions import LoadedFrom, prediction_origin, write_predictions
from nitro_cli.run.state import RunState
from nitro_cli.run.stopping import StopRequest
from nitro_cli.text import exception_text

__all__ = ["CallbackRun", "Callbacks", "UpdateEvent", "own_callbacks"]


class UpdateEvent:
    """An optimizer step that was taken, in host numbers.

    Attributes:
        step: the optimizer step, from 1.
        update: how many were taken up to here: steps that changed nothing are not counted.
        epoch: the epoch that it is of.
        batch: micro-batches of the epoch that were taken with it.
        microbatches: how many of these are the step's own.
        loss: of the step.
    """

    __slots__ = ("_at", "_told", "batch", "epoch", "loss", "microbatches", "step", "update")

    def __init__(
        self, step: int, update: int, epoch: int, batch: int, microbatches: int, loss: float, told: StepsDone, at: int
    ) -> None:
        self.step = step
        self.update = update
        self.epoch = epoch
        self.batch = batch
        self.microbatches = microbatches
        self.loss = loss
        self._told = told
        self._at = at

    @property
    def losses(self) -> dict[str, float | None]:
        """The loss terms by name; None for one of which all is masked."""
        line = self._told.line(self._at)
        return {name.removeprefix("loss/"): value for name, value in line.items() if name.startswith("loss/")}

    @property
    def metrics(self) -> dict[str, float | None]:
        """The train metrics by name."""
        line = self._told.line(self._at)
        return {name: value for name, value in line.items() if name != "loss" and not name.startswith("loss/")}


class CallbackRun:
    """What a callback sees of the run that it watches, and what it may ask for.

    Args:
        plan: of the run.
        path: the run's directory.
        everywhere: whether the callback is called in every process.
        stop: of the run.
        state: where it stands, as of the last event.
        predict: as the handle's.
        log: of the run's logger.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        *,
        everywhere: bool,
        stop: StopRequest,
        state: Callable[[], RunState],
        predict: Callable[[Any, RunState], Any],
        log: Callable[..., None],
    ) -> None:
        self._plan = plan
        self._path = path
        self._everywhere = everywhere
        self._stop = stop
        self._state = state
        self._predict = predict
        self._log = log

    @property
    def plan(self) -> Plan:
        """What setup decided."""
        return self._plan

    @property
    def experiment(self) -> Experiment:
        """The experiment; Device fields as host arrays, as they are now."""
        return self._state().host_view()

    @property
    def path(self) -> Path:
        """The directory of the run, under which a callback may write files of its own."""
        return self._path

    @property
    def step(self) -> int:
        """Optimizer steps dispatched."""
        return self._state().position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress or just ended."""
        return self._state().position.epoch

    @property
    def history(self) -> History:
        """A copy of the rows so far."""
        return copy.deepcopy(self._state().history)

    @property
    def metrics(self) -> dict[str, Any]:
        """The newest row of the history; empty before the first."""
        history = self._state().history
        return dict(history[-1]) if len(history) else {}

    def params(self) -> Any:
        """The parameters, copied to the host, as a tree of numpy arrays."""
        import jax

        self._check_alone("params()", self._plan.experiment.sharding == "fsdp")
        return jax.tree.map(lambda leaf: host_array(leaf).copy(), self._state().train.params)

    def predict(self, data: Any) -> Any:
        """Outputs in evaluation mode, as those of `Nitro.predict`."""
        self._check_alone("predict", True)
        return self._predict(data, self._state())

    def write_predictions(
        self,
        path: Path,
        split: str,
        fields: Sequence[str] = (),
        *,
        kind: str | None = None,
        output: str | None = None,
        target: str | None = None,
        ids: str | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> None:
        """Write the predictions of a split to a file that `nitro analyze` reads; one that is there is replaced.

        Args:
            path: the `.npz`; its directory is made.
            split: the split's name.
            fields: further fields of the batches that are written.
            kind, output, target, ids, labels: what the outputs mean, over what the experiment's task says.

        Raises:
            NotFoundError, DataError: there is no such split, field or output.
        """
        self._check_alone("write_predictions", True)
        plan, state = self._plan, self._state()
        said: dict[str, Any] = {"output": output, "target": target, "ids": ids}
        own = meaning_of(state.host_view()) or OutputMeaning(None)
        meaning = replace(own, **{name: value for name, value in said.items() if value is not None})
        if kind is not None:
            meaning = replace(meaning, spec=Probabilities(kind, -1, labels), decode=None)
        source = SplitRows(plan, split, meaning, fields)
        batches = predicted_batches(plan, lambda data: self._predict(data, state), source)
        if not is_main():  # all processes run the program, one writes
            collections.deque(batches, maxlen=0)
            return
        origin = prediction_origin(plan, state, source, LoadedFrom(run=self._path.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with OutputFile(path, force=True) as file:
            write_predictions(file, batches, source.meaning, origin, fields)

    def request_stop(self) -> None:
        """Stop at the next step boundary, with the state saved."""
        self._stop.ask("request")

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Write a line of numbers with the context `callback`."""
        at = self._state().position
        self._log(metrics, step=at.step, epoch=at.epoch, context="callback")

    def set_device(self, **values: Any) -> None:
        """Give Device fields new values from the next dispatch on; nothing recompiles."""
        self._check_alone("set_device", True)
        self._state().device.set(values)

    def _check_alone(self, what: str, shared: bool) -> None:
        if shared and process_count() > 1 and not self._everywhere:
            raise ConfigError(
                f"run.{what} of a callback that the main process calls alone",
                why="all processes have to take part in it",
                fix="set everywhere = True on the callback's class",
            )


def own_callbacks(e: Experiment) -> tuple[Callback, ...]:
    """The callbacks of an experiment, copied for one handle.

    Raises:
        ConfigError: two have one name, or one cannot be copied.
    """
    names = [callback.label for callback in e.callbacks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two callbacks are both called {twice}",
            where="callbacks",
            why="a callback is known by its id, or else by its class",
            fix="keep one of them, or give one a class of its own",
        )
    try:
        return copy.deepcopy(e.callbacks)
    except Exception as error:  # whatever somebody else's object raises that cannot be copied
        raise ConfigError(
            "the callbacks cannot be copied",
            where="callbacks",
            why=exception_text(error),
            fix="open files and connections in on_train_start",
        ) from error


class Callbacks:
    """Observes a run for its callbacks.

    Args:
        callbacks: copies of this handle's.
        view: what the callback is given, from whether it is called everywhere.
        plan: of the run.
    """

    def __init__(self, callbacks: Sequence[Callback], view: Callable[[bool], CallbackRun], plan: Plan) -> None:
        called = [callback for callback in callbacks if callback.everywhere or is_main()]
        self._called = [(callback, view(callback.everywhere)) for callback in called]
        self._started: list[tuple[Callback, CallbackRun]] = []
        self._updated = [pair for pair in self._called if pair[0].has("on_update")]
        self._accum = plan.experiment.accum

    def start(self) -> None:
        """Tell all that training begins."""
        for callback, run in self._called:
            with _blamed(callback, "on_train_start"):
                callback.on_train_start(run)
            self._started.append((callback, run))

    def end(self, reason: str) -> None:
        """Tell those that started that training ended, the last first; all are told, then the first failure is raised.

        Raises:
            HookError: one of them failed.
        """
        failed: Exception | None = None
        while self._started:
            callback, run = self._started.pop()
            try:
                with _blamed(callback, "on_train_end"):
                    callback.on_train_end(run, reason)
            except Exception as error:
                if failed is not None or reason == "error":
                    warn(str(error))
                failed = failed or error
        if failed is not None and reason != "error":
            raise failed

    def on_event(self, event: Event, state: RunState) -> None:
        """Hand an event on to those whose class writes a method for it."""
        if isinstance(event, StepsDone):
            if self._updated and len(event.numbers):
                self._update(event, state)
        elif isinstance(event, EpochBegan):
            self._tell("on_epoch_start")
        elif isinstance(event, Evaluated):
            self._tell("on_evaluate", event.split, event.metrics)
        elif isinstance(event, EpochRecorded):
            self._tell("on_epoch_end", event.row)
        elif isinstance(event, CheckpointBegan):
            self._tell("on_checkpoint", event.path)

    def _tell(self, method: str, *told: Any) -> None:
        for callback, run in self._called:
            if callback.has(method):
                with _blamed(callback, method):
                    getattr(callback, method)(run, *(dict(x) if isinstance(x, Mapping) else x for x in told))

    def _update(self, event: StepsDone, state: RunState) -> None:
        position, rows = state.position, event.numbers.tolist()
        column, taken = event.layout.OUTCOME, Outcome.TAKEN
        update = position.updates - sum(row[column] == taken for row in rows)
        for index, row in enumerate(rows):
            if row[column] != taken:
                continue
            update += 1
            for callback, run in self._updated:
                if update % callback.every:
                    continue
                step = event.first + index
                batch = position.batch - (position.step - step) * self._accum
                told = UpdateEvent(step, update, position.epoch, batch, self._accum, row[0], event, index)
                try:
                    callback.on_update(run, told)
                except Exception as error:
                    raise _failure(callback, "on_update", error) from error


@contextlib.contextmanager
def _blamed(callback: Callback, method: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _failure(callback, method, error) from error


def _failure(callback: Callback, method: str, error: Exception) -> NitroError:
    if isinstance(error, NitroError):
        return error
    return HookError(
        f"the callback {callback.label} failed", where=f"{callback.label}.{method}", why=exception_text(error)
    )
