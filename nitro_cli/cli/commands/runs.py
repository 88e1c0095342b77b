"""`nitro runs`: runs and their checkpoints, from the manifests alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nitro_cli.cli import completion
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import age, epochs_text, number, table
from nitro_cli.cli.run_places import HOME, check_manifest_lost, choose_run, find_run, is_run_root, run_roots
from nitro_cli.cli.run_status import status_text
from nitro_cli.errors import ExitCode, RunNotFoundError
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.checkpoints import RunSummary

__all__ = ["run"]


class Sort(StrEnum):
    """The order of the runs."""

    WRITTEN = "written"
    CREATED = "created"
    BEST = "best"
    EPOCHS = "epochs"
    PRESET = "preset"


def run(
    output: Output,
    run_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="Run directory, a run's own directory, or a run id; all under runs/ by default.",
            autocompletion=completion.known_runs,
            show_default=False,
        ),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="ID",
            help="One run of the directory, by id or unique prefix; all by default.",
            autocompletion=completion.run_ids,
        ),
    ] = None,
    sort: Annotated[Sort, typer.Option("--sort", help="Order; the newest or best first.")] = Sort.WRITTEN,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most N runs per directory.")
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", "-c", help="List the checkpoints of each run.")] = False,
    rescan: Annotated[bool, typer.Option("--rescan", help="Rebuild the manifest from the checkpoints first.")] = False,
) -> int:
    """Runs and their checkpoints, the newest first; without RUN_DIR all under runs/."""
    roots, only = _places(run_dir, run_id, rescan)
    found = {root: _runs_of(root, only, sort, limit, rescan) for root in roots}
    if output.json:
        rows = [
            {**summary.as_json(), "stop_cause": summary.stop_cause, "run_dir": str(root)}
            for root, held in found.items()
            for summary in held
        ]
        output.document(runs=rows)
        return ExitCode.OK
    if not any(found.values()):
        output.note("no runs yet; `nitro train EXP` makes one", always=True)
    for root, held in found.items():
        if held:
            _show(output, root, held, listed=checkpoints or only is not None)
    return ExitCode.OK


def _places(run_dir: str | None, run_id: str | None, rescan: bool) -> tuple[list[Path], str | None]:
    """The directories to list, and the one run to show of them."""
    if run_dir is None and run_id is None:
        roots = list(run_roots())
        _tell_lost_manifests(roots)
        return roots, None
    path = user_path(run_dir) if run_dir is not None else HOME
    if run_dir is not None and (is_run_root(path) or rescan):
        if not path.is_dir():
            raise RunNotFoundError(f"there is no directory {path}", fix="name the directory that holds the runs")
        return [path], None if run_id is None else choose_run(path, run_id).id
    inner = list(run_roots(path)) if path.is_dir() and run_dir is not None else []
    if len(inner) > 1 and run_id is None:
        return inner, None
    place = find_run(run_dir, run_id)
    return [place.root], place.id


def _tell_lost_manifests(roots: list[Path]) -> None:
    from nitro_cli.checkpoints import warn_about_unlisted

    if not roots:
        check_manifest_lost(HOME)
    for folder in sorted(HOME.iterdir()) if roots else ():
        if folder.is_dir() and folder not in roots:
            warn_about_unlisted(folder, ())


def _runs_of(root: Path, only: str | None, sort: Sort, limit: int | None, rescan: bool) -> list[RunSummary]:
    from nitro_cli.checkpoints import rescan as rebuild
    from nitro_cli.checkpoints import runs, warn_about_unlisted

    if rescan:
        rebuild(root)
    listed = runs(root)
    warn_about_unlisted(root, {summary.id for summary in listed})
    held = [summary for summary in listed if only is None or summary.id == only]
    return _sorted(held, sort)[:limit]


def _sorted(held: list[RunSummary], sort: Sort) -> list[RunSummary]:
    if sort is Sort.BEST:
        scored = [summary for summary in held if summary.best is not None]
        scored.sort(key=lambda s: (-1.0 if s.best.mode == "max" else 1.0) * s.best.score)  # type: ignore[union-attr,operator]
        return scored + [summary for summary in held if summary.best is None]
    if sort is Sort.WRITTEN:
        return held
    keys: dict[Sort, Any] = {
        Sort.CREATED: lambda s: -s.created,
        Sort.EPOCHS: lambda s: -max(s.epochs, default=0),
        Sort.PRESET: lambda s: s.preset or "",
    }
    return sorted(held, key=keys[sort])


def _show(output: Output, root: Path, held: list[RunSummary], *, listed: bool) -> None:
    rows = []
    for summary in held:
        best = summary.best
        shown = None if best is None else f"{best.metric or 'score'} {number(best.score)}"
        epochs = str(max(summary.epochs)) if summary.epochs else "-"
        kept, written = len(summary.checkpoints), age(summary.written)
        rows.append(
            [summary.id, summary.preset, status_text(summary), epochs, shown, best and best.epoch, kept, written]
        )
    columns = ["run", "preset", "status", "epoch", "best", "at", "kept", "written"]
    names = {summary.class_name for summary in held}
    title = f"{root}  ({', '.join(sorted(names))})" if names != {root.name} else str(root)
    output.show(table(columns, rows, right=(3, 5, 6), fold=(1, 4), title=title))
    if listed:
        for summary in held:
            _show_checkpoints(output, summary)
    elif len(held) == 1:
        kept_epochs = epochs_text(held[0].epochs) or "none"
        output.note(f"kept epochs: {kept_epochs} (their checkpoints are there, by the checkpointer's `keep`)")


def _show_checkpoints(output: Output, summary: RunSummary) -> None:
    best = summary.best.path if summary.best is not None else None
    rows = [
        [
            "*" if entry.path == best else "",
            entry.name,
            entry.epoch,
            entry.step,
            "resume point" if entry.resume_point else number(entry.score),
            age(entry.written),
        ]
        for entry in sorted(summary.checkpoints, key=lambda e: (e.step, e.epoch))
    ]
    branched = f", branched from {summary.parent}" if summary.parent else ""
    title = f"\n{summary.id}{branched}"
    columns = ["", "checkpoint", "epoch", "step", "score", "written"]
    output.show(table(columns, rows, right=(2, 3), fold=(1,), title=title))
