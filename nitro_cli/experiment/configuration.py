"""What is wrong with the values of an experiment that can be told without its data and its model."""

from __future__ import annotations

from nitro_cli.errors import ConfigError

from .experiment import Experiment
from .hook_table import HookTable, check_hooks
from .identity import check_graphconst, check_knob_kinds
from .judging import monitor_of
from .knobs import Checkpointer, EarlyStopping
from .selectors import Best

__all__ = ["check_configuration"]


def check_configuration(e: Experiment) -> None:
    """Check the kinds of the fields, the hooks, and that each rule has something to go by.

    Raises:
        ConfigError: something is wrong; it is the first thing that setup refuses too.
    """
    hooks = HookTable(e)
    check_hooks(hooks, e)
    check_knob_kinds(type(e))
    check_graphconst(e)
    _check_followers(e)
    if hooks.manual(e) and e.accum > 1:
        raise ConfigError(
            f"accum = {e.accum} with a `train_step` of the experiment's own",
            why="the hook takes one batch and does the whole optimizer step",
            fix="set accum = 1 and accumulate inside train_step",
        )


def _check_followers(e: Experiment) -> None:
    """Refuse a rule that would follow a monitor that is not there."""
    followers = []
    if isinstance(e.checkpointer, Checkpointer) and e.checkpointer.metric is None:
        followers += ["the checkpointer"] * any(isinstance(s, Best) for s in e.checkpointer.keep)
    if isinstance(e.early_stop, EarlyStopping) and e.early_stop.metric is None:
        followers.append("early stopping")
    if followers and monitor_of(e) is None:
        raise ConfigError(
            f"{' and '.join(followers)} would follow the monitor, and there is none",
            where=type(e).__name__,
            why="the experiment has metrics of its own, so nothing says which of them the run is judged by",
            fix='set monitor = ("<metric>", "max") or "min", or eval_loss = true to be judged by the loss',
        )
