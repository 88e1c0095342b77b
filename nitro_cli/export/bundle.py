"""The bundle: a directory with program, weights, provenance and a loader that needs neither nitro nor the sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jax
from jax import export

from nitro_cli.errors import ConfigError, warn
from nitro_cli.export import load
from nitro_cli.export.agreement import check_agreement
from nitro_cli.export.backends import ExportJob
from nitro_cli.export.program import PLATFORMS, Served, without_source_paths
from nitro_cli.export.repository import PATCH
from nitro_cli.export.tensors import check_same, write_safetensors
from nitro_cli.export.writing import new_directory
from nitro_cli.installation import nitro_version

__all__ = ["BundleBackend"]

PROMISED = timedelta(days=180)
"""How long a serialized program loads for certain: JAX promises six months of backward compatibility."""
_EXPORTED_FACTS = (
    "fun_name",
    "nr_devices",
    "calling_convention_version",
    "module_kept_var_idx",
    "uses_global_constants",
)


@dataclass(frozen=True)
class BundleBackend:
    """Writes a bundle.

    Args:
        platforms: the platforms that one program serves.
    """

    platforms: tuple[str, ...] = PLATFORMS
    suffix: str = ""

    def write(self, job: ExportJob) -> Path:
        """Write the directory and verify it by running it through its own loader."""
        with new_directory(job.target, force=job.force) as folder:
            programs = self._programs(job, folder)
            write_safetensors(folder / "weights.safetensors", job.served.weights, {"format": "nitro-bundle"})
            write_safetensors(folder / load.DEVICE, job.served.device, {"format": "nitro-device-fields"})
            (folder / load.PROVENANCE).write_text(json.dumps(job.provenance, indent=1, allow_nan=False) + "\n")
            (folder / load.CONFIG).write_text(job.config)
            (folder / "load.py").write_text(Path(load.__file__).read_text())
            for name, text in job.artefacts.items():
                (folder / name).write_text(text)
            for name, content in job.kept.items():
                (folder / name).write_bytes(content)
            if job.patch is not None:
                (folder / PATCH).write_bytes(job.patch)
            postprocess = None
            if job.served.contract.postprocess is not None:
                postprocess = "postprocess.py"
                (folder / postprocess).write_text(job.served.contract.postprocess)
            manifest = self._manifest(job, programs, postprocess, folder)
            (folder / load.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
            _verify(folder, job)
        return job.target

    def _programs(self, job: ExportJob, folder: Path) -> dict[str, dict[str, Any]]:
        """One program for any batch size, or where that cannot be traced one per fixed size; a text per fixed size."""
        served = job.served
        programs: dict[str, dict[str, Any]] = {}
        try:
            (dimension,) = export.symbolic_shape("batch")
            programs["any"] = _written(self._export(served, dimension), folder, "program")
        except Exception as error:
            if not _about_symbols(error):
                raise
            warn(
                f"the program cannot take any batch size ({str(error).splitlines()[0]}): the bundle holds the sizes "
                f"{', '.join(map(str, job.batch_sizes))} only"
            )
        for size in job.batch_sizes:
            fixed = self._export(served, size)
            (folder / f"program-b{size}.mlir").write_text(str(fixed.mlir_module()))
            if "any" not in programs:
                programs[str(size)] = _written(fixed, folder, f"program-b{size}")
        return programs

    def _export(self, served: Served, batch: Any) -> Any:
        weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in served.weights.items()}
        wire = [jax.ShapeDtypeStruct(spec.sized(batch), spec.dtype) for spec in served.contract.inputs]
        try:
            with without_source_paths():
                return export.export(jax.jit(served.function), platforms=self.platforms)(weights, *wire)
        except NotImplementedError as error:
            raise ConfigError(
                f"the program cannot be exported for {', '.join(self.platforms)}", why=str(error).splitlines()[0]
            ) from error

    def _manifest(
        self, job: ExportJob, programs: Mapping[str, Any], postprocess: str | None, folder: Path
    ) -> dict[str, Any]:
        contract = job.served.contract
        inputs = contract.client_inputs or contract.inputs
        now = datetime.now(UTC)
        manifest = {
            "kind": "nitro-bundle",
            "format": load.FORMAT,
            "nitro": nitro_version(),
            "jax": jax.__version__,
            "exported_at": now.isoformat(timespec="seconds"),
            "valid_until": (now + PROMISED).date().isoformat(),
            "platforms": list(self.platforms),
            "x64": bool(jax.config.read("jax_enable_x64")),
            "programs": dict(programs),
            "weights": "weights.safetensors",
            "inputs": [spec.as_json() for spec in contract.inputs],
            "outputs": [spec.as_json() for spec in contract.outputs],
            "client_inputs": [spec.as_json() for spec in inputs],
            "client_outputs": [spec.as_json() for spec in contract.client_outputs or contract.outputs],
            "batch_sizes": list(job.batch_sizes),
            "postprocess": postprocess,
            "patch": PATCH if job.patch is not None else None,
            "files": {file.name: _facts(file) for file in sorted(folder.iterdir())},
        }
        return {**manifest, "seal": load.manifest_seal(manifest)}


def _written(exported: Any, folder: Path, name: str) -> dict[str, Any]:
    """Write a program twice: as `jax.export` serializes it, and as the bare module for where flatbuffers is missing."""
    (folder / f"{name}.bin").write_bytes(exported.serialize())
    (folder / f"{name}.stablehlo").write_bytes(exported.mlir_module_serialized)
    facts = {key: getattr(exported, key) for key in _EXPORTED_FACTS}
    return {
        "serialized": f"{name}.bin",
        "module": f"{name}.stablehlo",
        "facts": {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()},
    }


def _facts(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _about_symbols(error: Exception) -> bool:
    """Whether tracing failed because the batch size was not a number."""
    names = {type(e).__name__ for e in (error, error.__cause__, error.__context__) if e is not None}
    return "InconclusiveDimensionOperation" in names or "symbolic" in str(error).lower()


def _verify(folder: Path, job: ExportJob) -> None:
    check_same(load.read_safetensors(folder / "weights.safetensors"), job.served.weights, folder)
    bundle = load.load_bundle(folder, raw=True)
    programs = bundle.manifest["programs"]
    for size, (wire, wanted) in job.expected.items():
        if "any" in programs or str(size) in programs:
            check_agreement(bundle(*wire), wanted, f"the bundle at batch size {size}")
    size, key = (min(job.expected), "any") if "any" in programs else (job.batch_sizes[0], str(job.batch_sizes[0]))
    wire, wanted = job.expected[size]
    by_hand = load.open_program(folder, bundle.manifest, key, by_hand=True)
    check_agreement(jax.jit(by_hand.call)(job.served.weights, *wire), wanted, "the bundle, loaded without flatbuffers")
