"""What the shell completes: names from package metadata, parsed files and manifests. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from nitro_cli.text import user_path, visible

__all__ = ["experiments", "export_backends", "fields", "known_runs", "presets", "run_ids", "targets"]


def experiments(incomplete: str) -> list[tuple[str, str]]:
    """Names of experiments, each with where it comes from."""
    from nitro_cli.registry import list_experiments

    found = [(ref.name, ref.distribution or ref.source) for ref in list_experiments() if ref.error is None]
    return _offered(found, incomplete)


def presets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Presets of the experiment on the command line."""
    ref = _experiment(ctx)
    if ref is None:
        return []
    from nitro_cli.registry import list_presets

    return [name for name, _ in _offered(((name, "") for name in list_presets(ref)), incomplete)]


def known_runs(incomplete: str) -> list[tuple[str, str]]:
    """Run directories and run ids under `runs/`."""
    found: list[tuple[str, str]] = []
    for root, manifest in _manifests():
        found.append((str(root), f"{len(manifest.runs)} runs"))
        found += [(run, f"{info.status} in {root}") for run, info in manifest.runs.items()]
    return _offered(found, incomplete)


def run_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Run ids of the directory on the command line, or of all under `runs/`."""
    given = _first_argument(ctx, "run_dir", "target")
    found = []
    for root, manifest in _manifests():
        if given is None or user_path(given) == root:
            found += [(run, f"{info.status}, preset {info.preset}") for run, info in manifest.runs.items()]
    return _offered(found, incomplete)


def targets(incomplete: str) -> list[tuple[str, str]]:
    """Experiments, then runs."""
    return experiments(incomplete) + known_runs(incomplete)


def fields(ctx: typer.Context, incomplete: str) -> list[str]:
    """Fields of the experiment on the command line and run knobs, as `name=`."""
    from nitro_cli.cli.knob_flags import KNOB_HELP

    ref = _experiment(ctx)
    own = list(_declared(ref.file, ref.class_name)) if ref is not None and ref.file is not None else []
    return [f"{name}=" for name in dict.fromkeys([*own, *KNOB_HELP, "schedules."]) if name.startswith(incomplete)]


def export_backends(incomplete: str) -> list[str]:
    """Names of export backends, those of plugins among them."""
    from nitro_cli.export import backend_names

    return [name for name in backend_names() if name.startswith(incomplete)]


def _offered(found: Iterable[tuple[str, str]], incomplete: str) -> list[tuple[str, str]]:
    """What begins so; a name that a terminal cannot show as it is could not be typed either."""
    return [
        (name, visible(help, keep=""))
        for name, help in found
        if name.startswith(incomplete) and name == visible(name, keep="")
    ]


def _experiment(ctx: typer.Context) -> Any:
    name = _first_argument(ctx, "experiment", "target")
    if not name:
        return None
    from nitro_cli.errors import NitroError
    from nitro_cli.registry import find_experiment

    try:
        return find_experiment(name)
    except NitroError:
        return None


def _first_argument(ctx: typer.Context, *names: str) -> str | None:
    """The command's first argument. An option that still lacks its value keeps the parser from naming arguments."""
    for name in names:
        if ctx.params.get(name):
            return str(ctx.params[name])
    return ctx.args[0] if ctx.args else None


def _manifests() -> Iterator[tuple[Path, Any]]:
    from nitro_cli.checkpoints import read_manifest
    from nitro_cli.cli.run_places import run_roots
    from nitro_cli.errors import NitroError

    for root in run_roots():
        try:
            yield root, read_manifest(root)
        except NitroError:
            continue


def _declared(file: Path, name: str) -> Iterator[str]:
    """Names annotated in the body of a class and of its bases in the same file."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    waiting, seen = [name], set()
    while waiting:
        node = classes.get(waiting.pop(0))
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id
        waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
