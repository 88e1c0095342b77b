"""`nitro average`: several checkpoints of a run as one record."""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nitro_cli.cli.options import ExperimentCode, RunChoice, RunDir
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.run_places import FoundRun, find_run
from nitro_cli.errors import ConfigError, ExitCode, IntegrityError, NitroError
from nitro_cli.text import user_path

__all__ = ["run"]


class StateFrom(StrEnum):
    """Which of the averaged checkpoints gives the layer state."""

    LATEST = "latest"
    BEST = "best"


def run(
    output: Output,
    run_dir: RunDir = None,
    select: Annotated[
        str, typer.Option("--select", metavar="S", help="Checkpoints to average: last(10), best(5), epochs(5:10).")
    ] = "last(10)",
    run_id: RunChoice = None,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="PATH", help="New record to write; in the run's averages/ by default."),
    ] = None,
    load_ema: Annotated[bool, typer.Option("--load-ema", help="Average the EMAs, not the raw weights.")] = False,
    state: Annotated[StateFrom, typer.Option("--state", help="Which gives the layer state.")] = StateFrom.LATEST,
    evaluate: Annotated[
        str | None, typer.Option("--evaluate", metavar="SPLIT", help="Also evaluate the average on this split.")
    ] = None,
    experiment: ExperimentCode = None,
) -> int:
    """Average checkpoints of one run into an ordinary record that says what it averaged."""
    from nitro_cli.checkpoints import AverageRef, average_checkpoints, resolve_source
    from nitro_cli.experiment import Average, parse_selector

    place = find_run(run_dir, run_id, with_checkpoints=True)
    selector = parse_selector(select)
    if isinstance(selector, Average):
        raise ConfigError(f"--select {select} is an average already", fix="give the selector inside it")
    refs = resolve_source((place.id, Average(selector, state=state.value)), place.root)
    assert isinstance(refs, AverageRef)
    picked = refs.average
    name = _file_name(str(picked.selector), load_ema)
    target = user_path(save) if save is not None else _own_place(place, name)
    record = average_checkpoints(place.root, place.id, picked, save=target, ema=load_ema)
    facts = record.meta.averaged_from
    assert facts is not None
    metrics = _evaluated(output, target, evaluate, experiment) if evaluate is not None else None
    if output.json:
        more = {} if metrics is None else {"split": evaluate, "metrics": metrics}
        output.document(run=place.id, run_dir=place.root, path=target, averaged_from=facts.as_json(), **more)
        return ExitCode.OK
    output.line(str(target))
    epochs = ", ".join(str(epoch) for epoch in facts.epochs)
    output.note(f"the mean of {len(facts.epochs)} checkpoints of run {place.id}: epochs {epochs}")
    splits = _splits(place)
    if metrics is None and {"test", "val"} & splits:
        code = experiment or _code_to_name(place)
        words = shlex.quote(str(target)) + (f" --experiment {shlex.quote(code)}" if code else "")
        output.note(f"next:\n  nitro {'evaluate' if 'test' in splits else 'validate'} {words}")
    return ExitCode.OK


def _code_to_name(place: FoundRun) -> str | None:
    """What the next command must name as the run's code, which averaging does not need; None where it finds it."""
    from nitro_cli.registry import code_to_name

    try:
        return code_to_name(place.config)
    except NitroError:  # a configuration that cannot be read: the next command says it
        return None


def _splits(place: FoundRun) -> set[str]:
    """The splits that the run had, as its setup report says; all where there is none."""
    from nitro_cli.checkpoints import read_run_file

    try:
        rows = read_run_file(place.path / "run.json")["report"]["data"]
        return {str(row["split"]) for row in rows}
    except (OSError, IntegrityError, KeyError, TypeError):
        return {"test", "val"}


def _own_place(place: FoundRun, name: str) -> Path:
    """Where an average of a run lies in the run's directory; never behind a link."""
    from nitro_cli.checkpoints import contained_path

    return contained_path(place.root, f"{place.id}/averages/{name}", place.path / "averages")


def _file_name(select: str, ema: bool) -> str:
    """`last(10)` as `average-last-10`."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", select).strip("-")
    return f"average-{words}" + ("-ema" if ema else "")


def _evaluated(output: Output, path: Path, split: str, experiment: str | None) -> dict[str, Any]:
    from nitro_cli.cli.evaluation import open_handle, show_metrics
    from nitro_cli.cli.targets import Overrides, resolve_target

    with progress_shown(output):
        target = resolve_target(str(path), Overrides(experiment=experiment))
        metrics = open_handle(output, target).evaluate(split)
    if not output.json:
        show_metrics(output, target, split, metrics, path)
    return metrics
