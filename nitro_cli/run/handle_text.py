"""What a handle says of itself: as plain text, for rich and as HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import jax

from nitro_cli.text import visible

if TYPE_CHECKING:
    from rich.text import Text

    from nitro_cli.run.handle import Nitro

__all__ = ["handle_html", "handle_line", "handle_rich", "handle_text"]


def handle_line(nitro: Nitro) -> str:
    """The handle in one line, also while its setup runs."""
    if not _is_set_up(nitro):
        return f"<Nitro {nitro.history.title}, in setup>"
    facts = _facts(nitro)
    return f"<Nitro {facts['experiment']}, preset {facts['preset']}, run {facts['run']}, {facts['state']}>"


def handle_text(nitro: Nitro) -> str:
    """Experiment, preset, run, weights and their source, state and last metrics; then what setup decided and bound."""
    if not _is_set_up(nitro):
        return handle_line(nitro)
    facts = _facts(nitro)
    width = max(map(len, facts))
    return "\n".join([*(f"{name:<{width}}  {value}" for name, value in facts.items()), str(nitro.report)])


def handle_rich(nitro: Nitro) -> Text:
    """The same with names and titles in bold."""
    from rich.text import Text

    text = Text(handle_text(nitro))
    text.highlight_regex(r"(?m)^\S[^\n]*?(?=  |$)", "bold")
    return text


def handle_html(nitro: Nitro) -> str:
    """The same as tables."""
    if not _is_set_up(nitro):
        return f"<p>{html.escape(handle_line(nitro))}</p>"
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in _facts(nitro).items()
    )
    return f"<table>{rows}</table>{nitro.report._repr_html_()}"


def _is_set_up(nitro: Nitro) -> bool:
    return hasattr(nitro, "checkpoint_source")  # the last thing that the construction sets


def _facts(nitro: Nitro) -> dict[str, str]:
    facts = {
        "experiment": nitro.parts.resolved.class_name,
        "preset": nitro.parts.preset or "none",
        "run": "none yet" if nitro.run_id is None else f"{nitro.run_id} in {nitro.run_dir}",
        "weights": _weights(nitro),
        "state": _state(nitro),
        "metrics": _metrics(nitro),
    }
    return {name: visible(value, keep="") for name, value in facts.items()}


def _weights(nitro: Nitro) -> str:
    """How many there are, and where they come from."""
    source = nitro.parts.source
    start = f"build_model, seed {nitro.parts.seed}" if source is None else source.text
    if nitro.restored is not None:
        origin = f"{nitro.restored}, restored after training"
    else:
        origin = start if nitro.run_id is None else f"trained from {start}"
    leaves = jax.tree.leaves(nitro.params)
    count = f"{sum(leaf.size for leaf in leaves):,} parameters in {len(leaves)} arrays"
    averaged = nitro.ema is not None and nitro.parts.experiment.eval_weights != "raw"
    return f"{origin} ({count}{'; evaluation reads their average' if averaged else ''})"


def _state(nitro: Nitro) -> str:
    position = f"epoch {nitro.epoch} of {nitro.parts.experiment.max_epochs}, step {nitro.step}"
    return f"{position}, {nitro.stop_reason or str(nitro.phase).lower()}"


def _metrics(nitro: Nitro) -> str:
    """Those of the last validation, and the best score of the run's checkpoints."""
    shown = [f"{name} {value:.6g}" for name, value in nitro.metrics.items() if isinstance(value, int | float)]
    shown += [name for name, value in nitro.metrics.items() if not isinstance(value, int | float)]
    if nitro.best is not None:
        shown.append(f"best {nitro.best['metric']} {nitro.best['score']:.6g} at epoch {nitro.best['epoch']}")
    return ", ".join(shown) or "none yet"
