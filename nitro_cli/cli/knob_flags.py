"""The run knobs as flags: one for every knob that holds a single value; the others go through --set."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from nitro_cli.errors import ConfigError

__all__ = ["FLAGS", "KNOB_HELP", "as_assignments", "given", "split_limit", "with_knob_flags"]

_PANEL = "Run knobs"

FLAGS: dict[str, tuple[type, str, str]] = {
    "max_epochs": (int, "N", "Epochs to train."),
    "learning_rate": (float, "X", "Base learning rate."),
    "weight_decay": (float, "X", "Decoupled weight decay."),
    "seed": (int, "N", "Seed of everything random."),
    "run_dir": (str, "DIR", "Directory that the runs share; runs/<Experiment> by default."),
    "accum": (int, "N", "Micro-batches folded into one optimizer step."),
    "n_devs": (int, "N", "Local devices that share each batch; all by default."),
    "gradient_clip_norm": (float, "X", "Clip the gradient's global norm; 0 is off."),
    "max_time": (str, "T", "Stop with the state saved after this time, such as 55m or 1h30m."),
    "check_divergence": (
        bool,
        "",
        "Stop on a non-finite loss or gradient; `--check-divergence skip` leaves such steps out.",
    ),
    "eval_loss": (bool, "", "Report the loss beside the experiment's own metrics."),
    "eval_weights": (str, "W", "Weights to evaluate: ema or raw."),
    "log_every_n_steps": (int, "N", "Steps between train lines in the log."),
    "autolog_schedules": (bool, "", "Log the values of schedules that vary."),
    "checkpoint_every_n_steps": (int, "N", "Also save inside an epoch, every N steps."),
    "checkpoint_every_minutes": (float, "X", "Also save inside an epoch, every X minutes."),
    "sharding": (str, "S", "How parameters lie on several devices."),
}
"""Type, metavar and help by knob."""

KNOB_HELP: dict[str, str] = {
    **{name: help for name, (_, _, help) in FLAGS.items()},
    "monitor": "Metric the run is judged by, with its mode.",
    "checkpointer": "Which checkpoints are kept.",
    "callbacks": "What watches the run.",
    "early_stop": "When to stop early.",
    "ema": "Exponential moving average of the parameters.",
    "logger": "Where numbers are written.",
}
"""One line per knob, those without a flag included."""


def with_knob_flags(names: Iterable[str] = tuple(FLAGS)) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one flag per knob in `names`, in the place of its `**knobs`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        flags = [_parameter(name) for name in names]

        @functools.wraps(function)
        def called(*args: Any, **values: Any) -> Any:
            return function(*args, **values)

        setattr(called, "__signature__", signature.replace(parameters=[*own, *flags]))  # noqa: B010 - unknown to mypy
        called.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
        del called.__wrapped__
        return called

    return decorate


def as_assignments(args: Sequence[str]) -> list[str]:
    """A command line in which `--check-divergence skip`, a flag with a word, is the assignment that it stands for."""
    flag, word = "--check-divergence", "skip"
    end = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for place, item in enumerate(args):
        if place < end and (item == f"{flag}={word}" or (item == flag and args[place + 1 : place + 2] == [word])):
            found += ["--set", f"check_divergence={word}"]
        elif not (place and item == word and args[place - 1] == flag and place < end):
            found.append(item)
    return found


def given(knobs: dict[str, Any]) -> dict[str, Any]:
    """The flags that were on the command line."""
    return {name: value for name, value in knobs.items() if value is not None}


def split_limit(flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags that become the run's own values, and `max_time`, which belongs to one call.

    Raises:
        ConfigError: the time is none.
    """
    once = {name: value for name, value in flags.items() if name == "max_time"}
    if once:
        from nitro_cli.experiment import Experiment, validation_problems

        problems = validation_problems(Experiment, once)
        if problems:
            raise ConfigError(f"--max-time {once['max_time']} cannot be used", why=problems[0].message)
    return {name: value for name, value in flags.items() if name != "max_time"}, once


def _parameter(name: str) -> inspect.Parameter:
    kind, metavar, help = FLAGS[name]
    flag = f"--{name.replace('_', '-')}"
    declared = (f"{flag}/--no-{flag[2:]}",) if kind is bool else (flag,)
    option = typer.Option(*declared, help=help, metavar=metavar or None, rich_help_panel=_PANEL, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )
