"""Writing an artefact anew from a bundle: its weights, configuration and Device values, under today's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Strict

from nitro_cli.analysis import AbstentionPolicy, Calibrator, Probabilities
from nitro_cli.errors import ConfigError, IncompatibleError, warn
from nitro_cli.export.agreement import check_agreement
from nitro_cli.export.backends import ExportJob, find_backend
from nitro_cli.export.checking import Expected, batch_sizes_of, checked, expected_outputs, plain_json, try_postprocess
from nitro_cli.export.contract import wire_contract
from nitro_cli.export.exporting import CHECKED_SIZES, artefact_path, written
from nitro_cli.export.judged_head import CALIBRATOR_FILE, POLICY_FILE, JudgedHead
from nitro_cli.export.load import CONFIG, DEVICE, PROVENANCE, BundleError, load_bundle, read_safetensors, verify_bundle
from nitro_cli.export.program import Served, serve
from nitro_cli.export.spec import ExportSpec
from nitro_cli.registry import exported_config, parse_set, read_config, read_toml
from nitro_cli.run import Handle, OutputMeaning, versions
from nitro_cli.text import user_path
from nitro_cli.text.documents import Document, check_document

__all__ = ["renew"]


def renew(
    bundle: Path | str,
    backend: Any = "bundle",
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    batch_sizes: Iterable[int] = (),
    provenance: Mapping[str, Any] | None = None,
    force: bool = False,
    experiment: str | None = None,
    sets: Sequence[str] = (),
) -> Path:
    """Export again what a bundle holds, where its program no longer loads or another kind of artefact is wanted.

    Args:
        bundle: the bundle's directory.
        backend: what to write; see `export`.
        dir: the folder to write into; the bundle's own when None.
        name: the artefact's name; the bundle's when None, which needs `force` for a bundle.
        batch_sizes: fixed batch sizes; the bundle's when empty.
        provenance: further entries.
        force: replace an existing artefact.
        experiment: what names the code, such as `path/to/file.py:Class`; found by the bundle's name for it when None.
        sets: words as after `--set`, for fields whose values stayed on the machine that made the bundle.

    Returns:
        The path written.

    Raises:
        BundleError: the bundle is damaged.
        ConfigError: a value that stayed at home is needed, or one of `sets` did not.
        ExperimentNotFoundError: the experiment is not installed here.
        IncompatibleError: the experiment's code builds other weights now, or the target exists.
        IntegrityError: the new program gives other outputs than the old one, which still loads.

    Warns:
        NitroWarning: the old program does not load any more, so that nothing can be compared with it.
    """
    source = user_path(bundle)
    manifest = verify_bundle(source)
    writer = find_backend(backend)
    sizes = batch_sizes_of(batch_sizes) if batch_sizes else tuple(manifest["batch_sizes"])
    folder = user_path(dir) if dir is not None else source.resolve().parent
    target = artefact_path(folder, name or source.resolve().name, writer.suffix, force=force)
    resolved = read_config(source / CONFIG, sets, experiment=experiment)
    _check_sets(sets, source / CONFIG)
    nitro = Handle(resolved, data={})
    contract = wire_contract(nitro.experiment, partial(_inputs_of, manifest))
    judged = _judged(nitro, source)
    served = serve(nitro, contract, read_safetensors(source / DEVICE), judged)
    served = checked(_with_weights(served, read_safetensors(source / manifest["weights"]), source))
    expected = expected_outputs(served, {*CHECKED_SIZES, *sizes})
    old = _compare_with_old(source, expected)
    try_postprocess(served.contract, expected)
    patch = manifest["patch"]
    job = ExportJob(
        served=served,
        target=target,
        force=force,
        batch_sizes=sizes,
        provenance=plain_json(_provenance(manifest, old, provenance or {}, source)),
        patch=None if patch is None else (source / patch).read_bytes(),
        config=exported_config(resolved),
        expected=expected,
        artefacts={} if judged is None else judged.files(),
        kept=_kept(source, manifest),
    )
    return written(nitro, writer, job)


def _kept(source: Path, manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """What the bundle holds of the run's kept files; its digests were verified."""
    named = json.loads((source / PROVENANCE).read_text()).get("kept", {})
    return {name: (source / name).read_bytes() for name in named if name in manifest["files"]}


class _Reads(Document):
    kind: Literal["categorical", "bernoulli", "continuous"]
    class_axis: int
    labels: Annotated[tuple[str, ...], Strict(False)] | None
    output: str | None


class _Artefacts(Document):
    reads: _Reads
    override: str | None
    calibrator: str | None = None
    policy: str | None = None


def _judged(nitro: Handle, source: Path) -> JudgedHead | None:
    """The calibrator and the policy of a bundle; their weights are those that the bundle holds."""
    entry = json.loads((source / PROVENANCE).read_text()).get("artefacts")
    if entry is None:
        return None
    told = {"what": "what the bundle says of its calibrator and policy is malformed", "fix": "export the run again"}
    held = check_document(_Artefacts, entry, source / PROVENANCE, **told)
    reads = held.reads
    meaning = OutputMeaning(Probabilities(reads.kind, reads.class_axis, reads.labels), reads.output)
    calibrator = Calibrator.load(source / CALIBRATOR_FILE) if held.calibrator is not None else None
    policy = AbstentionPolicy.load(source / POLICY_FILE) if held.policy is not None else None
    model = next((artefact.model_id for artefact in (calibrator, policy) if artefact is not None), None)
    return JudgedHead(meaning, model, calibrator, policy, held.override)


def _inputs_of(manifest: Mapping[str, Any]) -> tuple[ExportSpec, ...]:
    return tuple(ExportSpec(entry["name"], entry["dtype"], (1, *entry["shape"][1:])) for entry in manifest["inputs"])


def _check_sets(sets: Sequence[str], config: Path) -> None:
    """Refuse to change what the bundle's program and weights were made with."""
    home = read_toml(config).data.get("at_home", [])
    for text in sets:
        if (name := parse_set(text).path[0]) not in home:
            raise ConfigError(
                f"{name} of a bundle cannot be set",
                where=f"--set {text}",
                why="a bundle has values of its own; given may be those that stayed at home: "
                + (", ".join(home) or "none did"),
                fix="export the run instead",
            )


def _with_weights(served: Served, weights: Mapping[str, np.ndarray], source: Path) -> Served:
    now = {name: (array.dtype, array.shape) for name, array in served.weights.items()}
    held = {name: (array.dtype, array.shape) for name, array in weights.items()}
    if now != held:
        names = sorted(name for name in {*now, *held} if now.get(name) != held.get(name))
        raise IncompatibleError(
            f"the experiment builds other weights now than the bundle holds: {', '.join(names[:5])}",
            where=str(source),
            why="its code has changed since the export",
            fix="use the code that provenance.json names (commit and patch)",
        )
    return replace(served, weights=dict(weights))


def _compare_with_old(source: Path, expected: Expected) -> str:
    """Compare with the bundle's own program, and say whether that was possible."""
    try:
        old = load_bundle(source, raw=True)
        found = {size: old(*wire) for size, (wire, _) in expected.items() if _runs(old.manifest, size)}
    except (BundleError, ValueError, RuntimeError, TypeError) as error:
        told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        warn(f"the program of {source} does not run any more, so that the new one cannot be compared with it ({told})")
        return f"not compared: the old program does not run ({told})"
    for size, outputs in found.items():
        check_agreement(outputs, expected[size][1], f"{source}, its own program, at batch size {size}")
    return "the old program gives the same outputs"


def _runs(manifest: Mapping[str, Any], size: int) -> bool:
    return "any" in manifest["programs"] or str(size) in manifest["programs"]


def _provenance(manifest: Mapping[str, Any], old: str, own: Mapping[str, Any], source: Path) -> dict[str, Any]:
    before = json.loads((source / PROVENANCE).read_text())
    renewed = {
        "exported_at": manifest["exported_at"],
        "nitro": manifest["nitro"],
        "jax": manifest["jax"],
        "comparison": old,
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**before, "versions": versions(), "exported_at": now, "renewed_from": renewed, **own}
