"""The handle: one resolved run that can be trained, evaluated and asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import jax
import numpy as np

from nitro_cli.analysis import applied_scores, check_artefacts
from nitro_cli.checkpoints import check_run_dir_name
from nitro_cli.data import release_splits
from nitro_cli.distributed import main_first, watched
from nitro_cli.errors import ConfigError, IncompatibleError, warn
from nitro_cli.experiment import Experiment
from nitro_cli.programs import setup_cache
from nitro_cli.registry import Resolved, from_preset, relative_source, resolved_of
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.device_fields import no_attribute
from nitro_cli.run.evaluation import Evaluator
from nitro_cli.run.held_run import HeldRun
from nitro_cli.run.live_source import named_source
from nitro_cli.run.output_meaning import OutputMeaning, meaning_of
from nitro_cli.run.phases import MonitorHandle, Phase, PhaseName, PhaseState
from nitro_cli.run.predictions import LoadedFrom, SplitPredictions, predictions
from nitro_cli.run.progress import Progress
from nitro_cli.run.redefinition import CodeSnapshot
from nitro_cli.run.run_rules import restored_at_the_end
from nitro_cli.run.setup import set_up
from nitro_cli.run.start import CALL_WORDS, Start, check_knobs, told_to
from nitro_cli.run.stopping import StopRequest
from nitro_cli.run.training import Training

if TYPE_CHECKING:
    from nitro_cli.analysis import AbstentionPolicy, Calibrator, Prediction, PredictionStream, Probabilities

__all__ = ["Handle"]


class Handle(HeldRun):
    """A run, resolved at construction: setup runs, nothing is trained.

    Args:
        e: the experiment; as a `Resolved`, with its schedules, its preset and the origin of each value.
        data: named splits in the place of `build_data`; `{}` builds none (serving, export).
        weights: where the initial parameters come from: a checkpoint path, `"run:checkpoint"`, a pair, an `Average`
            pair, or a live handle. A pair names the run by its id, by `"latest"`, or by the live handle that wrote it.
        resume: the checkpoint to continue exactly, named the same way, or `"auto"`.
        w0: what `decay_anchor = "w0"` means: `"build_model"`, `"weights"` or a parameter tree.
        restore_optimizer: with `weights`, take its optimizer state as well.
        restore_best: end `train()` holding the best checkpoint's weights; an `Average` ends holding that average.
        load_ema: take the source's average in the place of its weights.
        schedules: replaces the experiment's schedules whole.
        compile_options: XLA options for every program.
        preset: the name of the preset that `e` was built from.
        run_ref: a list to append the handle to, or a function to call with it, once it is built: `train(e, ...)`
            returns only when the training is over.
        **knobs: any run knob, in the place of the experiment's field for this run; `max_time` for this call alone.

    Raises:
        ConfigError: the configuration, data, schedules or optimizer do not fit together.
        NotFoundError, IncompatibleError, IntegrityError: the checkpoint named cannot be used.

    Everything is resolved here; a later edit of a hook changes nothing on this handle. `train_state` is the whole
    training state, `train_state.opt` the optimizer's: like `params`, its arrays are deleted by the next `train()`.
    """

    def __init__(
        self,
        e: Experiment | Resolved,
        *,
        data: Mapping[str, Any] | None = None,
        weights: Any = None,
        resume: Any = None,
        w0: Any = "build_model",
        restore_optimizer: bool = False,
        restore_best: Any = False,
        load_ema: bool = False,
        schedules: Mapping[str, Any] | None = None,
        compile_options: Mapping[str, Any] | None = None,
        preset: str | None = None,
        run_ref: Callable[[Self], object] | list[Any] | None = None,
        **knobs: Any,
    ) -> None:
        check_knobs(knobs)
        tell = told_to(run_ref)
        setup_cache()
        given = _resolved(e, schedules, preset)
        resolved = given.with_values(knobs) if knobs else given
        configured = resolved.experiment
        self.phases = PhaseState(self._phase_facts)
        self.compiler = Compiler(self.phases, compile_options)
        self.stop = StopRequest()
        self.stop_reason: str | None = None
        self._restore_best = restored_at_the_end(restore_best)
        self._title = resolved.class_name
        self._training: Training | None = None
        self._sealed: str | None = None
        self._metrics: dict[str, Any] = {}
        self._released = False
        self._code = CodeSnapshot(configured)
        run_dir = Path(configured.run_dir or Path("runs") / resolved.class_name)
        check_run_dir_name(Path.cwd(), run_dir)
        with watched(), main_first():
            source = named_source(weights, resume, configured, run_dir, load_ema=load_ema)
        start = Start(
            given,
            run_dir,
            relative_source(resolved.cls),
            data=data,
            source=source,
            w0=w0,
            restore_optimizer=restore_optimizer,
            restore_best=self._restore_best,
            load_ema=load_ema,
        )
        with self._setting_up():
            self.plan, self._first_state = set_up(resolved, start, self.compiler)
        self.evaluator = Evaluator(self.plan, self.compiler)
        self.loads_ema = load_ema
        self.checkpoint_source: str | None = source.text if source is not None else None
        self._built = True
        tell(self)

    def __setattr__(self, name: str, value: Any) -> None:
        settable = getattr(getattr(type(self), name, None), "fset", None) is not None
        if name not in self.__dict__ and self._built and not (settable or name.startswith("_")):
            raise no_attribute(type(self), self.plan.experiment, name)
        object.__setattr__(self, name, value)

    @classmethod
    def from_preset(cls, experiment: type[Experiment], name: str, **keywords: Any) -> Self:
        """A handle on `experiment` under a preset, whose name is recorded.

        Args:
            experiment: the experiment's class.
            name: the preset.
            **keywords: fields of the experiment, and the other words of `Nitro`.
        """
        words = {key: keywords.pop(key) for key in CALL_WORDS if key in keywords}
        return cls(from_preset(experiment, name, **keywords), **words)

    def train(self) -> Self:
        """Train until `max_epochs`, an early stop or a request, and return the handle.

        Raises:
            DivergenceError: a loss or gradient is not finite; the weights in hand are the last good ones.
            ConfigError: there is no `train` split.
            IncompatibleError: the handle ended an earlier `train()` on restored best weights.
        """
        self.check_trainable()
        if self._sealed is not None:
            raise IncompatibleError(
                "this handle holds restored weights and cannot train on",
                why=f"its optimizer state and step belong to the end of training, its weights to {self._sealed}",
                fix="build a new handle: weights=(run, 'best') for a new run, resume=(run, 'best') to branch off, or "
                "resume=(run, 'latest') to continue",
            )
        with self._working():
            before, self.stop_reason = self._training, None
            if before is not None:
                self.stop = StopRequest()
                self._metrics = before.metrics
            self._training = Training(
                self.plan,
                self.run_state,
                compiler=self.compiler,
                evaluator=self.evaluator,
                phases=self.phases,
                stop=self.stop,
                before=before,
            )
            if self.run_id is not None:
                self.history.place = f"{self.run_dir}, run {self.run_id}"
            try:
                self.stop_reason = self._training.run()
            finally:
                # After the monitors heard how it ended: they may look at the data once more.
                self.release()
            self._sealed = self._training.restore_best(self._restore_best)
            if self._sealed is not None:
                self.checkpoint_source = self._sealed
        return self

    def check_trainable(self) -> None:
        """Refuse to train without a `train` split.

        Raises:
            ConfigError: there is none.
        """
        if "train" not in self.plan.splits:
            raise ConfigError(
                "there is nothing to train on",
                why=f"the splits are: {', '.join(self.plan.splits) or 'none'}",
                fix="return a `train` split from build_data, or pass data=",
            )

    def validate(self) -> dict[str, Any]:
        """Metrics of the `val` split, with the weights in hand."""
        return self.evaluate("val")

    def evaluate(
        self,
        split: str = "test",
        *,
        calibrator: Calibrator | None = None,
        policy: AbstentionPolicy | None = None,
        override: str | None = None,
        spec: Probabilities | OutputMeaning | None = None,
    ) -> dict[str, Any]:
        """Metrics of any split that `build_data` returned.

        Args:
            split: the split.
            calibrator: adds the scores of its probabilities: `calibrated/nll`, `calibrated/brier`, `calibrated/ece`.
            policy: adds `coverage` and `selective_risk`.
            override: a name under which artefacts of another model or other labels are accepted.
            spec: with either, what the outputs mean and which field is the target; None asks the task.

        Raises:
            NotFoundError: no such split; those there are are listed.
            ConfigError: an artefact was fitted on this split, or nothing says what the outputs mean.
            MismatchError: an artefact is of other weights or labels; the pass ends with its first batch.
        """
        with self._working():
            if calibrator is None and policy is None:
                return self._evaluate(split)
            seen = SplitPredictions(
                self.plan, self.run_state, split, self.output_meaning(spec), self._weights(),
                lambda first: check_artefacts(first, calibrator, policy, override),
            )  # fmt: skip
            metrics = self._evaluate(split, seen.add)
            return {**metrics, **applied_scores(seen.whole(), calibrator, policy, override)}

    def _evaluate(
        self, split: str, observe: Callable[[Mapping[str, Any], Any], object] | None = None
    ) -> dict[str, Any]:
        self.phases.set(Phase(PhaseName.EVALUATING))
        metrics = self.evaluator.evaluate(split, self.run_state, observe=observe)
        self.phases.evaluated(metrics)
        self.phases.set(Phase(PhaseName.IDLE))
        return metrics

    def predict(self, data: Any) -> Any:
        """Outputs in evaluation mode: host arrays for one batch, a lazy iterator for an iterable of batches.

        Args:
            data: a mapping of the fields that `forward` takes, batch first; or an iterable of such.
        """
        self._tell_redefined()
        return self.evaluator.predict(data, self.run_state)

    @overload
    def predictions(
        self, data: Mapping[str, Any], *, spec: Probabilities | OutputMeaning | None = None, fields: Sequence[str] = ()
    ) -> Prediction: ...
    @overload
    def predictions(
        self,
        data: str | Iterable[Mapping[str, Any]],
        *,
        spec: Probabilities | OutputMeaning | None = None,
        fields: Sequence[str] = (),
    ) -> PredictionStream: ...
    def predictions(
        self, data: Any, *, spec: Probabilities | OutputMeaning | None = None, fields: Sequence[str] = ()
    ) -> Prediction | PredictionStream:
        """Outputs read as what they mean: probabilities and decisions beside the raw outputs, with ids and targets.

        Args:
            data: a batch; the name of a split; or an iterable of batches.
            spec: what the outputs mean, in the place of the task; an `OutputMeaning` also names the output and the
                fields of target and ids.
            fields: further fields of the batches that are kept.

        Returns:
            The prediction of a batch; else a stream of one per batch in order, a context manager that keeps nothing of
            what it gave.

        Raises:
            ConfigError: nothing says what the outputs mean.
            NotFoundError, DataError: there is no such split, field or output.
            NonFiniteOutputError: an output is NaN or infinite; from the stream, when its batch is asked for.
        """
        meaning, one = self.output_meaning(spec), isinstance(data, Mapping)
        batches = [data] if one else data
        stream = predictions(self.plan, self.run_state, self.predict, batches, meaning, self._weights(), fields)
        if not one:
            return stream
        with stream:
            return next(stream)

    def output_meaning(self, spec: Probabilities | OutputMeaning | None = None) -> OutputMeaning:
        """What the outputs mean: what `spec` says, else what the task says.

        Raises:
            ConfigError: neither says it.
        """
        own = meaning_of(self.experiment)
        if isinstance(spec, OutputMeaning):
            return spec
        if spec is not None:
            return OutputMeaning(spec) if own is None else replace(own, spec=spec, decode=None)
        if own is not None:
            return own
        raise ConfigError(
            "nothing says what the outputs mean",
            why="logits of classes, logits of labels and plain values look alike",
            fix='give the experiment a task, or declare it: spec=Probabilities("categorical")',
        )

    def _weights(self) -> LoadedFrom:
        """Which weights the handle holds; those in training are of no checkpoint."""
        source = self.plan.source
        if self._training is not None:
            return LoadedFrom(self._sealed, self.run_id)
        ref = None if source is None else source.ref
        return LoadedFrom(self.checkpoint_source, None if ref is None else ref.run)

    def set_device(self, **values: Any) -> Self:
        """Give Device fields of this live handle new values; nothing recompiles.

        Raises:
            ConfigError: the field is not a Device field, is scheduled, or refuses the value as the experiment's
                construction would; or the value has another dtype or shape.
        """
        self.run_state.device.set(values)
        return self

    def device_value(self, name: str) -> Any:
        """The current value of a Device field, as a host array or number."""
        self.run_state.device.check_name(name)
        value = np.asarray(self.run_state.device_now()[name])
        return value.item() if value.ndim == 0 else value

    def request_stop(self, cause: str = "request") -> None:
        """Stop at the next step boundary, with the state saved."""
        self.stop.ask(cause)

    def release(self) -> None:
        """Let the data sources close what they hold open; once per handle, done by `train()` at its end."""
        if not self._released:
            self._released = True
            release_splits(self.plan.splits)

    def register_phase_monitor(self, monitor: Any) -> MonitorHandle:
        """Call `monitor(phase, step, epoch, info)` on this handle's phase transitions."""
        return self.phases.register(monitor)

    def _tell_redefined(self) -> None:
        report = self._code.report()
        if report is not None:
            warn(report)

    def _phase_facts(self) -> tuple[int | None, int | None, Mapping[str, Any]]:
        facts = {"nitro": self, "logger": self.logger, "is_main": jax.process_index() == 0}
        if not self._built or not self.epoch:
            return None, None, facts
        return self.step, self.epoch, facts

    @contextlib.contextmanager
    def _setting_up(self) -> Iterator[None]:
        Progress.call("begin", "setup", 0, 0, 0)
        try:
            with watched():
                yield
        finally:
            Progress.call("end", None)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """An entry point: announces its start, and that the process is idle again when it is over."""
        self._tell_redefined()
        self.phases.publish(Phase(PhaseName.STARTING))
        try:
            with watched():
                yield
        finally:
            self.phases.publish(Phase(PhaseName.IDLE))


def _resolved(e: Experiment | Resolved, schedules: Mapping[str, Any] | None, preset: str | None) -> Resolved:
    resolved = resolved_of(e)
    if preset is not None:
        resolved = replace(resolved, preset=preset)
    return resolved if schedules is None else resolved.with_schedules(schedules, preset)
