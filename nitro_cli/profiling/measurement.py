"""A short real run, taken apart: where its time goes, and the profiler's trace of a window of its steps."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nitro_cli.distributed import watched
from nitro_cli.errors import ConfigError, StoppedError
from nitro_cli.experiment import Checkpointer, Experiment, JSONLogger
from nitro_cli.profiling.stopwatch import REST, Spent, Stopwatch
from nitro_cli.profiling.timed_run import (
    CHECKPOINT,
    COMPILE,
    EVALUATION,
    STEP,
    TRANSFER,
    WAIT,
    PhaseClock,
    TimedCompiler,
    Transfers,
    Window,
    timed_plan,
)
from nitro_cli.profiling.trace_files import Trace
from nitro_cli.programs import cache_stats
from nitro_cli.registry import Resolved, resolved_of
from nitro_cli.run import Evaluator, Handle, Training
from nitro_cli.text import user_path

__all__ = ["PhaseTime", "Profile", "profile"]

SETUP = "setup"
PER_STEP = (WAIT, TRANSFER, STEP, REST)
FIRST_STEP, STEPS = 6, 20


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase.

    Attributes:
        name: `setup`, `compile`, `data wait`, `transfer`, `step`, `other`, `evaluation` or `checkpoint`.
        seconds: measured in all; of the four that belong to steps, in the window.
        share: of the sum over all phases; None for a transfer beside the steps.
        times: how often it was entered; for `step` and `other` the number of steps.
        each: seconds of one time.
        epoch_share: its part of a whole epoch, put together from one time of each; None where an epoch has none.
        overlapped: it ran on another thread while the loop went on.
    """

    name: str
    seconds: float
    share: float | None
    times: int
    each: float
    epoch_share: float | None = None
    overlapped: bool = False


@dataclass(frozen=True)
class Profile:
    """What `profile` measured.

    Attributes:
        trace: the directory of traces.
        files: the files of this one.
        first_step, steps: the window that was traced; whole dispatches, so it may be longer than asked for.
        steps_per_epoch: optimizer steps of an epoch.
        epoch_seconds: predicted time of one epoch: its steps as in the window, an evaluation, a checkpoint.
        phases: where the time went.
        resident: the data is on the device, so that steps neither wait for it nor move it.
    """

    trace: Path
    files: tuple[Path, ...]
    first_step: int
    steps: int
    steps_per_epoch: int
    epoch_seconds: float
    phases: tuple[PhaseTime, ...]
    resident: bool

    def as_json(self) -> dict[str, Any]:
        """As plain data, with the steps per second of the window."""
        plain = {**vars(self), "files": list(self.files), "phases": [asdict(phase) for phase in self.phases]}
        per_step = sum(phase.seconds for phase in self.phases if phase.name in PER_STEP and not phase.overlapped)
        return plain | {"steps_per_second": self.steps / per_step if per_step else None}


def profile(
    e: Experiment | Resolved,
    *,
    out_dir: Path | str | None = None,
    first_step: int | None = None,
    steps: int | None = None,
    **keywords: Any,
) -> Profile:
    """Train for a short while, trace a window of steps, and measure where the time goes.

    The run is a real one, in a folder that is removed at the end: its steps, one validation and one checkpoint. Each
    step is waited for, so that every second has one owner; `train` lets the host work meanwhile, and is faster. Early
    stopping and time limits are off, trackers are replaced by the plain log, a checkpointer of the experiment's own by
    the usual one.

    Args:
        e: the experiment.
        out_dir: where the trace is written; `<run_dir>/profile` when None.
        first_step: the window's first optimizer step, from 1; None takes the sixth, or the last there is.
        steps: how many; None takes 20, or as many as there are.
        **keywords: the keywords of `Nitro`; no `resume`.

    Raises:
        ConfigError: the window lies outside the run.
        KeyboardInterrupt: Ctrl-C came before the window was over.
        StoppedError: another signal did.
        NitroError: what `train` would raise. What was traced up to there is written.
    """
    resolved = resolved_of(e)
    place = user_path(out_dir) if out_dir is not None else _default_place(resolved.experiment, keywords)
    made = [folder for folder in (place, *place.parents) if not folder.exists()]
    place.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".run-", dir=place) as folder:
            return _profiled(resolved, place, Path(folder), first_step, steps, keywords)
    except BaseException:
        for empty in made:
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise


def _default_place(e: Experiment, keywords: dict[str, Any]) -> Path:
    run_dir = keywords.get("run_dir") or e.run_dir or Path("runs") / type(e).__name__
    return user_path(run_dir) / "profile"


def _profiled(
    resolved: Resolved, place: Path, folder: Path, first_step: int | None, steps: int | None, keywords: dict[str, Any]
) -> Profile:
    if "resume" in keywords:
        raise ConfigError("a profile resumes nothing", fix="give weights= a checkpoint to start from")
    knobs = {name: keywords.pop(name) for name in list(keywords) if name in Experiment.model_fields}
    resolved = resolved.with_values(knobs)
    e = resolved.experiment
    longest = e.max_epochs
    changed: dict[str, Any] = {"run_dir": folder, "early_stop": None, "max_time": None}
    # One epoch more than there is, so that the run is always stopped and never ends: its last checkpoint is then
    # measured without the time it takes to be written.
    changed["max_epochs"] = longest + 1
    if e.logger is not None:
        changed["logger"] = JSONLogger()
    if e.checkpointer is not None and not isinstance(e.checkpointer, Checkpointer):
        changed["checkpointer"] = Checkpointer()
    watch, before = Stopwatch(), cache_stats()
    with watch.spent(SETUP):
        nitro = Handle(resolved.with_values(changed), **keywords)
        nitro.check_trainable()
    after = cache_stats()
    compiled = after.hits + after.misses + after.disk_hits - before.hits - before.misses - before.disk_hits
    watch.move(after.seconds - before.seconds, compiled, SETUP, COMPILE)
    per_epoch = nitro.plan.splits["train"].batches // e.accum
    window = Window(*_bounds(first_step, steps, longest * per_epoch), watch, Trace(place))
    transfers = Transfers(watch)
    try:
        _train(nitro, watch, window, transfers)
    finally:
        window.trace.stop()
        nitro.release()
    return _told(window, transfers, watch.read(), per_epoch, place)


def _train(nitro: Handle, watch: Stopwatch, window: Window, transfers: Transfers) -> None:
    """Train until the window is over, validating once."""
    plan, phases, stop = timed_plan(nitro.plan, watch, transfers), nitro.phases, nitro.stop
    compiler = TimedCompiler(nitro.compiler, phases, watch, window, stop)
    evaluator = Evaluator(plan, compiler)
    nitro.register_phase_monitor(PhaseClock(watch))
    with watched():
        training = Training(plan, nitro.run_state, compiler=compiler, evaluator=evaluator, phases=phases, stop=stop)
        training.run()
        if not window.over:
            if stop.cause == "sigint":
                raise KeyboardInterrupt("interrupted by Ctrl-C before the window was over; nothing is left behind")
            raise StoppedError(
                f"stopped by {(stop.cause or 'itself').upper()} at step {training.state.position.step}, before the "
                "window was over",
                fix="profile again",
            )
        if "val" in plan.splits and not watch.read().times[EVALUATION]:
            with watch.spent(EVALUATION):
                evaluator.evaluate("val", training.state)


def _bounds(first_step: int | None, steps: int | None, total: int) -> tuple[int, int]:
    """The first and the last step of the window."""
    if steps is not None and steps < 1:
        raise ConfigError(f"a window of {steps} steps", fix="trace at least one step")
    if first_step is None:
        first_step = max(1, min(FIRST_STEP, total - (steps or 1) + 1))
    last = min(total, first_step + STEPS - 1) if steps is None else first_step + steps - 1
    if first_step < 1 or last < first_step or last > total:
        raise ConfigError(
            f"the run has no steps {first_step} to {max(last, first_step)}",
            why=f"its steps are 1 to {total}",
            fix="choose a window among them, or raise max_epochs",
        )
    return first_step, last


def _told(window: Window, transfers: Transfers, spent: Spent, per_epoch: int, place: Path) -> Profile:
    within = window.spent
    steps = window.last_taken - window.first_taken + 1
    rows: dict[str, tuple[float, int]] = {}
    for name in (SETUP, COMPILE, EVALUATION, CHECKPOINT):
        if spent.times[name]:
            rows[name] = spent.seconds[name], spent.times[name]
    overlapped = transfers.overlapped(window)
    for name in PER_STEP:
        if name in (STEP, REST):
            rows[name] = within.seconds[name], steps
        elif within.times[name]:
            rows[name] = within.seconds[name], within.times[name]
    total = sum(seconds for seconds, _ in rows.values())
    of_epoch = {name: rows[name][0] / steps * per_epoch for name in PER_STEP if name in rows}
    of_epoch |= {name: rows[name][0] / rows[name][1] for name in (EVALUATION, CHECKPOINT) if name in rows}
    epoch = sum(of_epoch.values())
    phases = {
        name: PhaseTime(name, seconds, seconds / total, times, seconds / times, _part(of_epoch.get(name), epoch))
        for name, (seconds, times) in rows.items()
    }
    if overlapped[1]:
        seconds, times = overlapped
        phases[TRANSFER] = PhaseTime(TRANSFER, seconds, None, times, seconds / times, overlapped=True)
    ordered = (SETUP, COMPILE, *PER_STEP, EVALUATION, CHECKPOINT)
    return Profile(
        trace=place,
        files=window.trace.files,
        first_step=window.first_taken,
        steps=steps,
        steps_per_epoch=per_epoch,
        epoch_seconds=epoch,
        phases=tuple(phases[name] for name in ordered if name in phases),
        resident=not transfers.any,
    )


def _part(seconds: float | None, whole: float) -> float | None:
    return None if seconds is None or not whole else seconds / whole
