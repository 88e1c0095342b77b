"""Training from the command line: the handle, its displays, and how the process ends."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.options import use_program_cache
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.stop_signals import stopped_by
from nitro_cli.display.progress_state import duration
from nitro_cli.errors import ExitCode
from nitro_cli.experiment import EarlyStopping

if TYPE_CHECKING:
    from nitro_cli.nitro import Nitro
    from nitro_cli.registry import Resolved

__all__ = ["outcome", "train_resolved"]


_CAUSES = {
    "sigint": "stopped by Ctrl-C",
    "sigterm": "stopped by SIGTERM",
    "sigusr1": "stopped by SIGUSR1",
    "max_time": "stopped by max_time",
}


@dataclass
class _Trained:
    nitro: Nitro
    steps: int
    seconds: float
    compiles: int


def train_resolved(
    output: Output, resolved: Resolved, *, cache_dir: str | None = None, named: str | None = None, **words: Any
) -> int:
    """Build a handle, train it, and tell what came of it.

    Args:
        output: the streams.
        resolved: the experiment with its values.
        cache_dir: where compiled programs are kept.
        named: what the user named the experiment by, if they did; told in the next commands where a run of it is not
            found without.
        **words: `resume`, `weights` and the other keywords of `Nitro`.

    Returns:
        The exit code of how the run ended.
    """
    with progress_shown(output):
        trained = _train(output, resolved, cache_dir, words)
    code, happened, saved = outcome(trained.nitro)
    if trained.nitro.stop_reason == "completed" and not trained.steps:
        nitro = trained.nitro
        happened = f"nothing was left to train at epoch {nitro.epoch} of {nitro.experiment.max_epochs}"
    if output.json:
        _document(output, resolved, trained)
        if code:
            output.complain_json({"error": "Stopped", "what": f"{happened}; {saved}", "exit_code": int(code)})
    else:
        _tell(output, resolved, trained, happened, saved, named)
    return code


def _train(output: Output, resolved: Resolved, cache_dir: str | None, words: dict[str, Any]) -> _Trained:
    from nitro_cli.nitro import Nitro
    from nitro_cli.programs import cache_stats

    use_program_cache(cache_dir)
    started = time.monotonic()
    compiled = cache_stats().misses
    nitro: Nitro | None = None
    try:
        nitro = Nitro(resolved, **words)
        if output.verbose:
            output.note(str(nitro.report))
        before = nitro.step
        nitro.train()
    except KeyboardInterrupt as error:
        if stopped_by() is None:  # a hook raised it
            raise
        raise KeyboardInterrupt(_interrupted(nitro)) from error
    return _Trained(nitro, nitro.step - before, time.monotonic() - started, cache_stats().misses - compiled)


def _interrupted(nitro: Nitro | None) -> str:
    path = nitro.run_path if nitro is not None else None
    if path is None or not path.is_dir():
        return "interrupted by Ctrl-C; there was nothing to save, and no run is left behind"
    return f"interrupted by Ctrl-C; the last checkpoint committed in {path} is whole"


def outcome(nitro: Nitro) -> tuple[ExitCode, str, str]:
    """How a training call that returned ended: the exit code, what happened, and whether the state is saved."""
    at = f"at epoch {nitro.epoch}, step {nitro.step}"
    if nitro.stop_reason != "requested":
        return ExitCode.OK, f"{nitro.stop_reason} {at}", ""
    cause = nitro.stop_cause or "request"
    saved = "the state is saved" if nitro.state_saved else "the state was not saved"
    happened = f"{_CAUSES.get(cause, 'stopped on request')} {at}"
    if cause == "sigint":
        return ExitCode.INTERRUPTED, happened, saved
    if cause == "request":
        return ExitCode.OK, happened, saved
    if nitro.state_saved:
        return ExitCode.STOPPED, happened, saved
    return (ExitCode.FAILED if cause == "max_time" else ExitCode.TERMINATED), happened, saved


def _document(output: Output, resolved: Resolved, trained: _Trained) -> None:
    nitro = trained.nitro
    output.document(
        run=nitro.run_id,
        run_dir=nitro.run_dir,
        experiment=resolved.class_name,
        preset=resolved.preset,
        stop_reason=nitro.stop_reason,
        stop_cause=nitro.stop_cause,
        state_saved=nitro.state_saved,
        epoch=nitro.epoch,
        step=nitro.step,
        best=nitro.best,
        metrics=nitro.metrics,
        seconds=round(trained.seconds, 3),
        compiles=trained.compiles,
    )


def _tell(output: Output, resolved: Resolved, trained: _Trained, happened: str, saved: str, named: str | None) -> None:
    from nitro_cli.registry import found_by_record

    nitro = trained.nitro
    if nitro.history:
        output.show(nitro.history)
    compiled = f"; {trained.compiles} program{'s' * (trained.compiles != 1)} compiled" if trained.compiles else ""
    output.note(f"{happened}, after {duration(trained.seconds)}{saved and '; ' + saved}{compiled}")
    output.note(f"run {nitro.run_id} in {nitro.run_dir}")
    best = nitro.best
    if best is not None:
        name = Path(best["checkpoint"]).name
        output.note(f"best {best['metric']} {best['score']:.6g} ({best['mode']}): {name}")
    outside = None if named is None or found_by_record(resolved.cls) else named
    output.note("next:\n" + "\n".join(f"  {command}" for command in _next_commands(nitro, outside)))


def _next_commands(nitro: Nitro, code: str | None = None) -> list[str]:
    """What one does next with this run: the commands as they can be typed, naming its `code` where that is given."""
    place = shlex.quote(str(nitro.run_dir))
    run = f"--run {nitro.run_id}" + (f" --experiment {shlex.quote(code)}" if code else "")
    if nitro.stop_reason == "requested":
        return [f"nitro resume {place} {run}", f"nitro runs {place}"]
    commands = []
    if "test" in nitro.plan.splits:
        commands.append(f"nitro evaluate {place} {run} --split test")
    if nitro.stop_reason != "early_stop":
        commands.append(f"nitro resume {place} {run} --max-epochs {2 * max(nitro.epoch, nitro.experiment.max_epochs)}")
    elif isinstance(nitro.experiment.early_stop, EarlyStopping):
        patience = 2 * nitro.experiment.early_stop.patience
        commands.append(f"nitro resume {place} {run} --set early_stop.patience={patience}")
    return [*commands, f"nitro runs {place}"]
