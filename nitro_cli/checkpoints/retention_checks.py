"""What setup asks of retention: that checkpoints are there when they are wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nitro_cli.errors import ConfigError, warn
from nitro_cli.experiment import Best, Checkpointer, Last

from .retention import Retention

if TYPE_CHECKING:
    from nitro_cli.experiment import Average, CheckpointStore

__all__ = ["check_averaged", "check_retention"]


def check_retention(checkpointer: Checkpointer, *, scored: bool) -> None:
    """Refuse a rule that keeps nothing.

    Args:
        checkpointer: the rule.
        scored: whether epochs get a score: there is a `val` split.

    Raises:
        ConfigError: it keeps the best alone, and nothing is scored.

    Warns:
        NitroWarning: the state that training ends in is not kept.
    """
    if not scored and all(isinstance(selector, Best) for selector in checkpointer.keep):
        raise ConfigError(
            "the checkpointer keeps only the best, and there is no `val` split to score them",
            fix='keep = ["last(1)"], or return a val split',
        )
    if not any(isinstance(selector, Last) for selector in checkpointer.keep):
        warn(
            "the checkpointer keeps no last(n): the state training ends in is not kept, and a resume continues "
            "from the newest kept epoch"
        )


def check_averaged(
    checkpointer: Checkpointer | CheckpointStore | None,
    average: Average,
    max_epochs: int,
    *,
    metric: str | None,
    mode: str | None,
    scored: bool,
) -> None:
    """Check that a run still has, at its end, the checkpoints that `restore_best` averages.

    Args:
        checkpointer: the rule, a store of one's own, or None.
        average: what is to be averaged.
        max_epochs: epochs of the run.
        metric, mode: the run's monitor, for a rule that follows it.
        scored: whether epochs get a score.

    Raises:
        ConfigError: it may not; what would keep them is named.
    """
    selector = average.selector
    if selector.ranks and not scored:
        why, fix = "there is no `val` split, so no epoch has a score", "average the last ones, or return a val split"
    elif checkpointer is None:
        why, fix = "checkpointer is None: none is written", f'checkpointer = {{ keep = ["{selector}"] }}'
    elif not isinstance(checkpointer, Checkpointer):
        why, fix = f"{type(checkpointer).__name__} gives its best and its latest only", "restore_best=True"
    else:
        retention = Retention.of(checkpointer, metric if scored else None, mode if scored else None)
        if retention.holds(selector, max_epochs):
            return
        why = f"of {max_epochs} epochs keep = [{', '.join(map(str, checkpointer.keep))}] may not leave them"
        # `keep` takes no `among`: what the best are chosen from is kept instead.
        needed = selector.among if isinstance(selector, Best) and selector.among is not None else selector
        enough = (*checkpointer.keep, needed)
        if replace(retention, keep=enough).holds(selector, max_epochs):
            fix = f"keep = [{', '.join(repr(str(rule)) for rule in enough)}]"
        else:
            fix = "average epochs that the run has, or raise max_epochs"
    raise ConfigError(
        f"restore_best = {average} asks for checkpoints that will not be there", where="checkpointer", why=why, fix=fix
    )
