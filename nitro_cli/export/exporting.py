"""From a handle to an artefact: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.checkpoints import contained_path
from nitro_cli.errors import ConfigError, IncompatibleError
from nitro_cli.export.backends import ExportBackend, ExportJob, find_backend
from nitro_cli.export.checking import (
    batch_sizes_of,
    check_against_predict,
    checked,
    expected_outputs,
    plain_json,
    try_postprocess,
)
from nitro_cli.export.contract import wire_contract
from nitro_cli.export.default_contract import default_inputs
from nitro_cli.export.judged_head import held_by
from nitro_cli.export.program import serve
from nitro_cli.export.provenance import merged_provenance
from nitro_cli.export.repository import repository_facts
from nitro_cli.export.writing import check_target
from nitro_cli.programs import fresh_trace
from nitro_cli.registry import exported_config
from nitro_cli.run import Phase, PhaseName, kept_digests
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.analysis import AbstentionPolicy, Calibrator, Probabilities
    from nitro_cli.run import Handle, OutputMeaning

__all__ = ["CHECKED_SIZES", "artefact_path", "export", "written"]

CHECKED_SIZES = (1, 3)


def export(
    nitro: Handle,
    backend: Any = "bundle",
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    batch_sizes: Iterable[int] = (1,),
    provenance_root: Path | str | None = None,
    provenance: Mapping[str, Any] | None = None,
    force: bool = False,
    calibrator: Calibrator | None = None,
    policy: AbstentionPolicy | None = None,
    override: str | None = None,
    spec: Probabilities | OutputMeaning | None = None,
) -> Path:
    """Write a servable artefact of a handle and return its path. Nothing is trained and no data is needed.

    Args:
        nitro: the handle; its evaluation weights and current Device values are exported.
        backend: a backend's name, or an object with `write(job)`.
        dir: the folder to write into; `<run_dir>/export` when None.
        name: the artefact's name; the experiment's when None.
        batch_sizes: fixed batch sizes to write programs for, beside the one for any size.
        provenance_root: a folder of the git work tree that the experiment lives in.
        provenance: further entries, stronger than all others.
        force: replace an existing artefact.
        calibrator: adds the output `calibrated_probabilities`.
        policy: adds the outputs `score` and `accepted`.
        override: a name under which a calibrator or a policy of another model or other labels is accepted.
        spec: with either, what the outputs mean; None asks the task.

    Raises:
        MismatchError: the calibrator or the policy is of other weights or labels.
        ConfigError, HookError: the export hooks do not fit together, or not the program.
        IncompatibleError: the target exists, or the handle spreads over several devices.
        IntegrityError: the artefact, run by itself, does not give what `predict` gives; or the run's folder is a link.
        StorageError: it could not be written; nothing is left behind.
    """
    writer = find_backend(backend)
    sizes = batch_sizes_of(batch_sizes)
    if nitro.plan.placement.count > 1:
        raise IncompatibleError(
            f"the handle is spread over {nitro.plan.placement.count} devices",
            fix="export from a handle on one: Nitro(e, weights=..., data={}, n_devs=1)",
        )
    e = nitro.experiment
    contract = wire_contract(e, partial(default_inputs, nitro))
    folder = user_path(dir) if dir is not None else contained_path(nitro.run_dir, "export", nitro.run_dir / "export")
    target = artefact_path(folder, name or type(e).__name__, writer.suffix, force=force)
    judged = held_by(nitro, calibrator, policy, override, spec)
    served = checked(serve(nitro, contract, judged=judged))
    expected = expected_outputs(served, {*CHECKED_SIZES, *sizes})
    check_against_predict(nitro, served, expected)
    try_postprocess(served.contract, expected)
    repository, patch = repository_facts(writer, provenance_root)
    merged = merged_provenance(nitro, repository, provenance or {}) | ({} if judged is None else judged.provenance())
    kept = nitro.plan.settings.kept
    if kept:
        merged["kept"] = kept_digests(kept)
    job = ExportJob(
        served=served,
        target=target,
        force=force,
        batch_sizes=sizes,
        provenance=plain_json(merged),
        patch=patch,
        config=exported_config(nitro.resolved),
        expected=expected,
        artefacts={} if judged is None else judged.files(),
        kept=kept,
    )
    return written(nitro, writer, job)


def artefact_path(folder: Path, name: str, suffix: str, *, force: bool) -> Path:
    """Where an artefact goes; an existing one is refused, unless it is to be replaced.

    Raises:
        ConfigError: the name is none of a file.
        IncompatibleError: it exists.
    """
    if "/" in name or "\\" in name or name.startswith(".") or not name.strip():
        raise ConfigError(f"an artefact cannot be named {name!r}", fix="give a plain name, and the folder as dir")
    target = folder / f"{name}{suffix}"
    check_target(target, force=force)
    return target


def written(nitro: Handle, writer: ExportBackend, job: ExportJob) -> Path:
    """Let the backend write, the handle's phase saying so meanwhile."""
    before = nitro.phase
    nitro.phases.set(Phase(PhaseName.COMPILING, "export"))
    try:
        with fresh_trace():
            return writer.write(job)
    finally:
        nitro.phases.set(before)
