"""`nitro smoke`: one tiny run of each experiment and preset, for CI."""

from __future__ import annotations

from typing import Annotated

import typer

from nitro_cli.cli import completion
from nitro_cli.cli.options import CacheDir, Preset, Sets, Unsets, use_program_cache
from nitro_cli.cli.output import Output
from nitro_cli.cli.stop_signals import raise_if_stopped
from nitro_cli.errors import ExitCode, NitroError
from nitro_cli.registry import ExperimentRef, find_experiment, list_experiments, list_presets

__all__ = ["run"]


def run(
    output: Output,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXP", help="Experiments; all found by default.", autocompletion=completion.experiments),
    ] = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    cache_dir: CacheDir = None,
) -> int:
    """Take experiments through a tiny run: train, stop by a signal, resume, evaluate, average, reload, export.

    Two optimizer steps an epoch, in a temporary folder; every preset unless --preset names one. The exit code is 1
    when one fails. Made for CI.
    """
    refs = [find_experiment(name) for name in experiments] if experiments else list_experiments()
    if not refs:
        output.note("no experiment found; `nitro new NAME` writes a project with one", always=True)
        return ExitCode.OK
    from nitro_cli.cli.render.smoke_results import tell_smoke
    from nitro_cli.registry import resolve
    from nitro_cli.smoke_run import SmokeResult, smoke

    use_program_cache(cache_dir)
    results = []
    for ref, name in _pairs(refs, preset):
        output.note(f"smoke: {ref.name}" + (f" {name}" if name else ""))
        try:
            resolved = resolve(ref, name, sets or (), unsets or ())
        except NitroError as error:
            results.append(SmokeResult(ref.name, name, failed=error, failed_in="resolve"))
            continue
        with output.hooks_to_stderr():
            results.append(smoke(resolved))
        raise_if_stopped()
    return tell_smoke(output, results)


def _pairs(refs: list[ExperimentRef], preset: str | None) -> list[tuple[ExperimentRef, str | None]]:
    """Every experiment with every preset; without any preset as it is."""
    if preset is not None:
        return [(ref, preset) for ref in refs]
    pairs: list[tuple[ExperimentRef, str | None]] = []
    for ref in refs:
        pairs += [(ref, name) for name in list_presets(ref)] or [(ref, None)]
    return pairs
