"""`nitro export`: a servable artefact."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nitro_cli.cli.applied_artefacts import AppliedArtefacts
from nitro_cli.cli.bundle_failures import bundle_failures
from nitro_cli.cli.completion import export_backends
from nitro_cli.cli.declared_outputs import DeclaredOutputs, with_declared_outputs
from nitro_cli.cli.evaluation import open_handle
from nitro_cli.cli.knob_flags import given, with_knob_flags
from nitro_cli.cli.options import (
    CheckpointChoice,
    ExperimentCode,
    Force,
    OptionalTarget,
    Preset,
    RunChoice,
    Sets,
    Unsets,
    WeightsOption,
)
from nitro_cli.cli.output import Output
from nitro_cli.cli.prediction_options import CalibratorChoice, OverrideName, PolicyChoice
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.render.tables import size as shown_size
from nitro_cli.cli.targets import Overrides, resolve_target
from nitro_cli.errors import ConfigError, ExitCode

__all__ = ["run"]


@with_declared_outputs
@with_knob_flags(("eval_weights",))
def run(
    output: Output,
    declared: DeclaredOutputs,
    target: OptionalTarget = None,
    backend: Annotated[
        str,
        typer.Option("--backend", "-b", metavar="B", help="Kind of artefact.", autocompletion=export_backends),
    ] = "bundle",
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="The artefact's name; the experiment's by default.")
    ] = None,
    dir_: Annotated[
        str | None,
        typer.Option("--dir", metavar="D", help="Folder to write into; `export` in the run directory by default."),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option("--batch-sizes", metavar="N,N", help="Fixed batch sizes, such as 1,32; 1 by default."),
    ] = None,
    provenance_root: Annotated[
        str | None,
        typer.Option("--provenance-root", metavar="DIR", help="Folder of the git work tree to record the state of."),
    ] = None,
    provenance: Annotated[
        list[str] | None,
        typer.Option("--provenance", metavar="K=V", help="Further entry of the provenance; may be repeated."),
    ] = None,
    from_bundle: Annotated[
        str | None,
        typer.Option("--from-bundle", metavar="PATH", help="Write a bundle anew from its own weights and settings."),
    ] = None,
    calibrator: CalibratorChoice = None,
    policy: PolicyChoice = None,
    override: OverrideName = None,
    force: Force = False,
    checkpoint: CheckpointChoice = None,
    run_id: RunChoice = None,
    preset: Preset = None,
    sets: Sets = None,
    unsets: Unsets = None,
    weights: WeightsOption = None,
    experiment: ExperimentCode = None,
    **knobs: object,
) -> int:
    """Write an artefact that runs without nitro: a bundle, a SavedModel, an ONNX file, or the weights alone.

    The artefact is run by itself and compared with predict before it appears; a failure leaves nothing behind. A
    calibrator adds the output `calibrated_probabilities`, a policy `score` and `accepted`.
    """
    words: dict[str, Any] = {"name": name, "dir": dir_, "provenance": _entries(provenance or ()), "force": force}
    sizes = _sizes(batch_sizes)
    from nitro_cli.export import export, find_backend, renew

    find_backend(backend)
    with progress_shown(output):
        if from_bundle is not None:
            beside = {"TARGET": target, "--preset": preset, "--weights": weights, "--run": run_id,
                      "--checkpoint": checkpoint, "--unset": unsets, "--provenance-root": provenance_root,
                      "--calibrator": calibrator, "--policy": policy}  # fmt: skip
            _refuse(beside)
            with bundle_failures():
                path = renew(from_bundle, backend, batch_sizes=sizes, experiment=experiment, sets=sets or (), **words)
            about: dict[str, Any] = {"experiment": None, "run": None, "checkpoint": None, "from_bundle": from_bundle}
        else:
            overrides = Overrides(preset, sets or (), unsets or (), given(knobs), experiment)
            found = resolve_target(target, overrides, weights=weights, run=run_id, checkpoint=checkpoint)
            words |= AppliedArtefacts(declared, calibrator, policy, override).words(found, judged=False)
            nitro = open_handle(output, found, data={})
            path = export(nitro, backend, batch_sizes=sizes or (1,), provenance_root=provenance_root, **words)
            chosen = found.checkpoint or found.weights
            name = found.resolved.class_name
            about = {"experiment": name, "run": found.run, "checkpoint": chosen, "from_bundle": None}
    return _tell(output, path, backend, about)


def _tell(output: Output, path: Path, backend: str, about: dict[str, Any]) -> int:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if backend == "bundle":
        files = [file for file in files if file != path / "manifest.json"]  # which lists the others, as `verify` counts
    total = sum(file.stat().st_size for file in files)
    if output.json:
        output.document(path=path, backend=backend, bytes=total, files=len(files), **about)
        return ExitCode.OK
    output.line(str(path))
    output.note(f"{backend}: {len(files)} file{'s' if len(files) > 1 else ''}, {shown_size(total)}")
    if backend == "bundle":
        output.note(f"next: nitro bundle info {path}")
    return ExitCode.OK


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(
            f"--batch-sizes {text} is no list of batch sizes",
            why="batch sizes are whole numbers from 1 up",
            fix="--batch-sizes 1,32",
        )
    return tuple(int(word) for word in words)


def _entries(words: Sequence[str]) -> dict[str, Any]:
    entries = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--provenance {word} is no entry", fix="--provenance ticket=42")
        try:
            entries[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            entries[key.strip()] = text
    return entries


def _refuse(beside: dict[str, Any]) -> None:
    for option, value in beside.items():
        if value:
            raise ConfigError(
                f"{option} does not go with --from-bundle",
                why="a bundle has an experiment, values and weights of its own",
                fix=f"drop {option}, or export a run instead",
            )
