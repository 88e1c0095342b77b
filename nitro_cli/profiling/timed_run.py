"""A run that is timed from outside: the programs it calls, the batches it asks for, its phases."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax

from nitro_cli.profiling.stopwatch import Spent, Stopwatch
from nitro_cli.profiling.trace_files import Trace
from nitro_cli.programs import Program, TrainState
from nitro_cli.run import Compiler, Phase, PhaseName, PhaseState, Plan, StopRequest

__all__ = ["PhaseClock", "TimedCompiler", "Transfers", "Window", "timed_plan"]

COMPILE, WAIT, TRANSFER, STEP = "compile", "data wait", "transfer", "step"
EVALUATION, CHECKPOINT, TRACING = "evaluation", "checkpoint", "writing the trace"


class Window:
    """The steps to trace, whole dispatches of them: open from the end of the one before to the end of the last.

    Args:
        first, last: optimizer steps asked for.
        watch: the clock of the training thread.
        trace: the trace to write.
    """

    def __init__(self, first: int, last: int, watch: Stopwatch, trace: Trace) -> None:
        self.first, self.last = first, last
        self.trace = trace
        self.first_taken = self.last_taken = 0
        self.over = False
        self.spent = Spent()
        self.began = self.ended = 0.0
        self._watch = watch
        self._before: Spent | None = None

    def stands_before(self, step: int) -> None:
        """The next dispatch begins with `step`."""
        if self._before is not None or self.over or step < self.first:
            return
        with self._watch.spent(TRACING):
            self.trace.start()
        self.first_taken = step
        self._before, self.began = self._watch.read(), time.perf_counter()

    def taken(self, step: int) -> bool:
        """Steps up to `step` are finished; True once the window is over."""
        if self._before is not None and not self.over and step >= self.last:
            self.spent, self.ended = self._watch.read().since(self._before), time.perf_counter()
            self.last_taken, self.over = step, True
            with self._watch.spent(TRACING):
                self.trace.stop()
        return self.over


class Transfers:
    """Batches moved to the device: by the training thread, on its clock, or beside it on a thread of their own."""

    def __init__(self, watch: Stopwatch) -> None:
        self.any = False
        self._watch = watch
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._moved: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One batch is moved inside."""
        self.any = True
        with jax.profiler.TraceAnnotation(TRANSFER):
            if threading.get_ident() == self._thread:
                with self._watch.spent(TRANSFER):
                    yield
                return
            began = time.perf_counter()
            yield
            with self._lock:
                self._moved.append((began, time.perf_counter()))

    def overlapped(self, window: Window) -> tuple[float, int]:
        """Seconds and number of the transfers on another thread that began inside the window."""
        with self._lock:
            spent = [ended - began for began, ended in self._moved if window.began <= began < window.ended]
        return sum(spent), len(spent)


class TimedCompiler(Compiler):
    """A compiler whose programs of a step are waited for at every call, so that each second has one owner.

    Args:
        compiler: whose options and phases are taken over.
        phases: of the run.
        watch: the clock of the training thread.
        window: told which steps a call took.
        stop: asked for once the window is over.
    """

    def __init__(
        self, compiler: Compiler, phases: PhaseState, watch: Stopwatch, window: Window, stop: StopRequest
    ) -> None:
        super().__init__(phases, compiler.options)
        self.programs.update(compiler.programs)
        self._watch, self._window, self._stop = watch, window, stop

    def compile(
        self, purpose: str, function: Any, args: tuple[Any, ...], *, donate_argnums: tuple[int, ...] = ()
    ) -> Program:
        """As a compiler's own; what replaces a train state is timed from then on."""
        with self._watch.spent(COMPILE):
            program = super().compile(purpose, function, args, donate_argnums=donate_argnums)
        if isinstance(args[0], TrainState):
            return _TimedProgram(program, self._window, self._watch, self._stop)
        return program


class PhaseClock:
    """A phase monitor that counts validation and checkpoints, each from its phase to the next.

    Args:
        watch: the clock of the training thread.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._now: str | None = None

    def __call__(self, phase: Phase, step: int | None, epoch: int | None, info: Mapping[str, Any]) -> None:
        """A transition; compiling is counted where it happens."""
        if phase.name is PhaseName.COMPILING:
            return
        name = {PhaseName.EVALUATING: EVALUATION, PhaseName.CHECKPOINTING: CHECKPOINT}.get(phase.name)
        if name == self._now:
            return
        if self._now is not None:
            self._watch.leave()
        if name is not None:
            self._watch.enter(name)
        self._now = name


def timed_plan(plan: Plan, watch: Stopwatch, transfers: Transfers) -> Plan:
    """The plan with a train split whose batches are counted as they are asked for and moved."""
    timed: Any = _TimedSplit(plan.splits["train"], watch, transfers)
    return replace(plan, data=replace(plan.data, splits={**plan.splits, "train": timed}))


class _TimedProgram(Program):
    """A training program that returns when its results are there, and tells the window which steps it took."""

    def __init__(self, program: Program, window: Window, watch: Stopwatch, stop: StopRequest) -> None:
        super().__init__(
            program.name, program.identity, program.compiled, program.source, program.seconds, program.trace_seconds
        )
        self._window, self._watch, self._stop = window, watch, stop

    def __call__(self, *args: Any) -> Any:
        before = int(args[0].step)
        self._window.stands_before(before + 1)
        with self._watch.spent(STEP), jax.profiler.StepTraceAnnotation("train", step_num=before + 1):
            results = jax.block_until_ready(super().__call__(*args))
        taken = int(results[0].step)
        if self._window.taken(taken):
            self._stop.ask("request")
        else:
            self._window.stands_before(taken + 1)
        return results


class _TimedSplit:
    """A split whose streams are timed; everything else is the split's own."""

    def __init__(self, split: Any, watch: Stopwatch, transfers: Transfers) -> None:
        self._split, self._watch, self._transfers = split, watch, transfers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)

    def stream(self, *, prepare: Any = None, windows: Any = None, **words: Any) -> _TimedStream:
        """The split's own stream; each batch, or window of them, is waited for as it is moved."""
        if windows is not None:
            windows = replace(windows, place=self._timed(windows.place))
        timed = self._timed(prepare) if prepare is not None else None
        return _TimedStream(self._split.stream(prepare=timed, windows=windows, **words), self._watch)

    def _timed(self, move: Any) -> Any:
        def timed(*args: Any) -> Any:
            with self._transfers.one():
                return jax.block_until_ready(move(*args))

        return timed


class _TimedStream:
    """A stream that counts how long it is waited for."""

    def __init__(self, stream: Any, watch: Stopwatch) -> None:
        self._stream, self._watch = stream, watch

    def __enter__(self) -> _TimedStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._stream.__exit__(*exception)

    def __iter__(self) -> _TimedStream:
        return self

    def __next__(self) -> Any:
        with self._watch.spent(WAIT), jax.profiler.TraceAnnotation(WAIT):
            return next(self._stream)

    @property
    def wait_seconds(self) -> float:
        """The stream's own count."""
        return float(self._stream.wait_seconds)

    @property
    def built(self) -> tuple[int, float]:
        """As the stream's own."""
        return self._stream.built

    def want(self, batches: int) -> None:
        """As the stream's own."""
        self._stream.want(batches)

    def hurry(self, patience: float) -> None:
        """As the stream's own."""
        self._stream.hurry(patience)

    def close(self) -> None:
        """End the pass."""
        self._stream.close()
