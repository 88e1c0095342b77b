"""`nitro checkpoint`: look into checkpoints, verify them, delete them."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nitro_cli.cli.options import Yes
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import number, size, table
from nitro_cli.cli.run_places import find_run, is_run_directory, is_run_root
from nitro_cli.cli.targets import checkpoint_of, named_checkpoint
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.text import user_path

__all__ = ["info", "prune", "verify"]

_RUN_ID = re.compile(r"[0-9a-f]{8}")

CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Directory of a checkpoint; or a run, a run directory or a run id, with `:best`, `:latest` or a name.",
    ),
]
AnyPath = Annotated[str, typer.Argument(metavar="PATH", help="A checkpoint, a run, or a run directory.")]
RunPath = Annotated[str, typer.Argument(metavar="PATH", help="A run, or a run directory.")]


def info(
    output: Output,
    path: CheckpointPath,
    leaves: Annotated[bool, typer.Option("--leaves", help="List every array with its shape and dtype.")] = False,
) -> int:
    """Metadata of a checkpoint, without its arrays."""
    from nitro_cli.checkpoints import checkpoint_info

    found = checkpoint_info(_named(output, path))
    if output.json:
        shapes = {name: {"dtype": s.dtype, "shape": s.shape, "kind": s.kind} for name, s in found.leaves.items()}
        about = found.meta.experiment
        output.document(
            experiment=about.name, import_path=about.import_,
            path=found.path, format=found.format, framework=found.framework, versions=found.versions,
            written=found.written, entry=found.entry, size=found.size, parameters=found.parameters,
            meta=found.meta.as_json(),
            leaves=shapes,
        )  # fmt: skip
        return ExitCode.OK
    output.show(table(["checkpoint", found.path.name], _facts(found), fold=(1,)))
    if found.meta.metrics:
        rows = [[name, number(value, 6)] for name, value in found.meta.metrics.items()]
        output.show(table(["metric", "value"], rows, right=(1,), title="\nmetrics"))
    if leaves:
        rows = [[name, s.dtype, "x".join(map(str, s.shape)) or "scalar"] for name, s in found.leaves.items()]
        output.show(table(["leaf", "dtype", "shape"], rows, fold=(0,), title="\narrays"))
    return ExitCode.OK


def _named(output: Output, text: str) -> Path:
    """The checkpoint that a path, a run, or a name as `--weights` takes it means; a choice is said."""
    path = user_path(text)
    checkpoint = None
    if is_run_root(path) or is_run_directory(path) or _RUN_ID.fullmatch(text):
        place = find_run(text, with_checkpoints=True)
    elif not path.exists() and (named := named_checkpoint(text)) is not None:
        place, checkpoint = named
    else:
        return path
    _, chosen, which = checkpoint_of(place, checkpoint)
    if chosen is None:
        raise ConfigError(f"{text} is no one checkpoint", fix=f"write it with `nitro average`: {which}")
    output.note(f"run {place.id} of {place.root}, {which}")
    return chosen


def _facts(found: Any) -> list[list[Any]]:
    meta = found.meta
    averaged = meta.averaged_from
    rows = [
        ["experiment", meta.experiment.name],
        ["preset", meta.preset],
        ["epoch", meta.epoch],
        ["step", meta.step],
        ["seed", meta.seed],
        ["written", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.written))],
        ["size", size(found.size)],
        ["parameters", f"{found.parameters:,}"],
        ["nitro", found.framework],
        ["format", found.format],
    ]
    if averaged:
        rows.append(["average of", f"{averaged.spec} of run {averaged.run}: epochs {averaged.epochs}"])
    if meta.stop_reason:
        rows.append(["stopped", meta.stop_reason])
    return rows


def verify(output: Output, path: AnyPath) -> int:
    """Check size and SHA-256 of every file of a checkpoint, of a run's checkpoints, or of a whole directory's.

    The exit code is 5 when one is damaged, when one or a run is gone that the manifest lists, and when the manifest
    or a history says otherwise than the records.
    """
    from nitro_cli.checkpoints import named_pair, placed_pair
    from nitro_cli.checkpoints import verify as verify_all

    found = verify_all(_named(output, path) if named_pair(path) or placed_pair(path) else path)
    damaged = [outcome for outcome in found if not outcome.ok]
    if output.json:
        output.document(checkpoints=[outcome.as_json() for outcome in found], damaged=len(damaged))
    else:
        words = ["ok" if o.ok else "GONE" if o.gone else "DAMAGED" for o in found]
        rows = [[word, o.path, size(o.size) if o.ok else "-"] for word, o in zip(words, found, strict=True)]
        output.show(table(["", "checkpoint", "size"], rows, right=(2,), fold=(1,)))
        for outcome in damaged:
            if (error := outcome.error) is not None:
                path, place = str(outcome.path), error.where or ""
                place = place if path in place else f"{path} ({place})" if place else path
                output.complain_line(f"{place}: {error.why or error.what}")
    return ExitCode.INTEGRITY if damaged else ExitCode.OK


def prune(
    output: Output,
    path: RunPath,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="S", help="What stays, such as best(3) or last(1); may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Yes = False,
) -> int:
    """Delete checkpoints that no --keep selects, and what damage and kills left behind.

    Without --keep only quarantined checkpoints and left-over temporaries go. Asks on a terminal and needs --yes
    elsewhere.
    """
    from nitro_cli.checkpoints import prune as delete
    from nitro_cli.experiment import parse_selector

    selectors = None if not keep else [_selector(parse_selector(text), text) for text in keep]
    listed = delete(path, keep=selectors)
    total = sum(item.size for item in listed)
    if listed and not dry_run and not yes:
        _ask(output, listed, total)
    gone = delete(path, keep=selectors, delete=True) if listed and not dry_run else []
    if output.json:
        output.document(deleted=bool(gone), checkpoints=[item.as_json() for item in gone or listed], bytes=total)
        return ExitCode.OK
    if not listed:
        output.note("nothing to delete", always=True)
    elif dry_run:
        output.show(_table(listed))
        output.note(f"{len(listed)} directories, {size(total)}; nothing was deleted")
    else:
        output.text(f"deleted {len(gone)} directories, {size(sum(item.size for item in gone))}")
    return ExitCode.OK


def _selector(made: Any, text: str) -> Any:
    if hasattr(made, "selector"):
        raise ConfigError(f"--keep {text} is an average, which keeps nothing", fix=f"--keep {made.selector!s}")
    return made


def _ask(output: Output, listed: list[Any], total: int) -> None:
    if output.json or not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigError(
            f"{len(listed)} directories, {size(total)}, would be deleted",
            why="nobody can be asked: this is no terminal",
            fix="give --yes to delete, --dry-run to see them",
        )
    output.show(_table(listed))
    typer.confirm(f"delete these {len(listed)} directories, {size(total)}?", abort=True, err=True)


def _table(listed: list[Any]) -> Any:
    rows = [[item.run, Path(item.path).name, item.epoch, item.reason, size(item.size)] for item in listed]
    return table(["run", "checkpoint", "epoch", "why", "size"], rows, right=(2, 4), fold=(1,))
