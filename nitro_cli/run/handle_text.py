"""What a handle says of itself: as plain text, for rich and as HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from nitro_cli.run.plan import Plan
from nitro_cli.run.report import SetupReport
from nitro_cli.run.state import RunState
from nitro_cli.text import visible

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["facts_html", "facts_line", "facts_rich", "facts_text", "handle_facts"]


def handle_facts(
    plan: Plan,
    run: RunState,
    *,
    run_id: str | None,
    restored: str | None,
    doing: str,
    metrics: Mapping[str, Any],
    best: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Experiment, preset, run, weights and their source, state and last metrics, as one line of text each.

    Args:
        plan, run: of the handle.
        run_id: of the run that it writes, if any.
        restored: what its weights were restored from after training, if anything.
        doing: its phase, or how training ended.
        metrics: of the last validation.
        best: of its run's checkpoints.
    """
    settings = plan.settings
    position = f"epoch {run.position.epoch} of {plan.experiment.max_epochs}, step {run.position.step}"
    facts = {
        "experiment": settings.resolved.class_name,
        "preset": settings.resolved.preset or "none",
        "run": "none yet" if run_id is None else f"{run_id} in {settings.run_dir}",
        "weights": _weights(plan, run, run_id is not None, restored),
        "state": f"{position}, {doing}",
        "metrics": _metrics(metrics, best),
    }
    return {name: visible(value, keep="") for name, value in facts.items()}


def facts_line(facts: Mapping[str, str]) -> str:
    """The handle in one line."""
    return f"<Nitro {facts['experiment']}, preset {facts['preset']}, run {facts['run']}, {facts['state']}>"


def facts_text(facts: Mapping[str, str], report: SetupReport) -> str:
    """The facts, then what setup decided and bound."""
    width = max(map(len, facts))
    return "\n".join([*(f"{name:<{width}}  {value}" for name, value in facts.items()), str(report)])


def facts_rich(facts: Mapping[str, str], report: SetupReport) -> Text:
    """The same with names and titles in bold."""
    from rich.text import Text

    text = Text(facts_text(facts, report))
    text.highlight_regex(r"(?m)^\S[^\n]*?(?=  |$)", "bold")
    return text


def facts_html(facts: Mapping[str, str], report: SetupReport) -> str:
    """The same as tables."""
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>{report._repr_html_()}"


def _weights(plan: Plan, run: RunState, trained: bool, restored: str | None) -> str:
    """How many there are, and where they come from."""
    start = f"build_model, seed {plan.settings.seed}" if plan.source is None else plan.source.text
    if restored is not None:
        origin = f"{restored}, restored after training"
    else:
        origin = f"trained from {start}" if trained else start
    leaves = jax.tree.leaves(run.train.params)
    count = f"{sum(leaf.size for leaf in leaves):,} parameters in {len(leaves)} arrays"
    averaged = run.train.ema is not None and plan.experiment.eval_weights != "raw"
    return f"{origin} ({count}{'; evaluation reads their average' if averaged else ''})"


def _metrics(metrics: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """Those of the last validation, and the best score of the run's checkpoints."""
    shown = [f"{name} {value:.6g}" for name, value in metrics.items() if isinstance(value, int | float)]
    shown += [name for name, value in metrics.items() if not isinstance(value, int | float)]
    if best is not None:
        shown.append(f"best {best['metric']} {best['score']:.6g} at epoch {best['epoch']}")
    return ", ".join(shown) or "none yet"
