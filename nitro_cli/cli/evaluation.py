"""A handle on a target, for the commands that only use what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.output import Output
from nitro_cli.cli.targets import Target, find_weights
from nitro_cli.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from nitro_cli.nitro import Nitro

__all__ = ["open_handle", "show_metrics"]


def open_handle(output: Output, target: Target, *, data: Any = None) -> Nitro:
    """Build the handle of a target: its experiment with its weights, nothing trained."""
    from nitro_cli.nitro import Nitro

    if target.said:
        output.note(target.said)
    nitro = Nitro(target.resolved, data=data, weights=target.weights, load_ema=_wants_ema(target))
    if output.verbose:
        output.note(str(nitro.report))
    return nitro


def _wants_ema(target: Target) -> bool:
    """Whether the checkpoint has an average of its weights, and nothing asks for the raw ones."""
    e = target.resolved.experiment
    if e.eval_weights == "raw":
        return False
    from nitro_cli.checkpoints import named_pair, record_info

    if target.checkpoint is None:
        from nitro_cli.experiment import own_store

        store = own_store(e.checkpointer)
        pair = named_pair(target.weights) if store is not None and target.weights is not None else None
        if store is None or pair is None:
            return False
        from nitro_cli.run import load_own

        return any(leaf.startswith("ema/") for leaf in load_own(store, *pair)[0].arrays)
    try:
        info = record_info(target.checkpoint)
    except CheckpointNotFoundError:
        if target.weights is None:
            raise
        # A run at work has rotated it away: what is named is another one now.
        info = record_info(str(find_weights(target.resolved, target.weights)))
    return any(leaf.startswith("ema/") for leaf in info.leaves)


def show_metrics(output: Output, target: Target, split: str, metrics: dict[str, Any], checkpoint: Path | None) -> None:
    """The result of an evaluation: a table, or the document of validate and evaluate."""
    if output.json:
        output.document(
            experiment=target.resolved.class_name,
            run=target.run,
            checkpoint=checkpoint if checkpoint is not None else target.weights,
            split=split,
            metrics=metrics,
        )
        return
    from nitro_cli.cli.render.tables import number, table

    shown = {name: value for name, value in metrics.items() if _is_scalar(value)}
    scalars = [[name, "-" if value is None else number(value, 6)] for name, value in shown.items()]
    output.show(table([f"{split} metric", "value"], scalars, right=(1,)))
    others = [name for name in metrics if name not in shown]
    if others:
        output.note(f"not tabulated: {', '.join(others)}; --json has them")


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or getattr(value, "shape", None) == ()
