"""The ONNX backend: one file for any batch size, run by onnxruntime before it appears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.export.agreement import check_agreement
from nitro_cli.export.backends import ExportJob, without_postprocess
from nitro_cli.export.contract import WireContract
from nitro_cli.export.onnx.conversion import onnx_model
from nitro_cli.export.writing import new_file
from nitro_cli.installation import import_extra

__all__ = ["OnnxBackend"]

_MOST = 2**31 - 2**20
"""What one ONNX file can hold: it is a protocol buffer."""


class OnnxBackend:
    """`NAME.onnx`: dynamic batch, weights inside, provenance as metadata."""

    suffix = ".onnx"

    def write(self, job: ExportJob) -> Path:
        """Write the file, run it with onnxruntime and compare its outputs.

        Raises:
            MissingExtraError: onnx or onnxruntime is not installed.
            ConfigError: the function uses something that cannot be written to ONNX.
            IntegrityError: onnxruntime gives other outputs than the handle.
        """
        onnx, runtime = _packages()
        total = sum(array.nbytes for array in job.served.weights.values())
        if total > _MOST:
            raise ConfigError(
                f"the weights are {total / 2**30:.1f} GiB, and an ONNX file holds less than 2", fix="export a bundle"
            )
        _check_dtypes(job.served.contract)
        without_postprocess(job, "an ONNX file")
        model = onnx_model(job.served, {"provenance": json.dumps(job.provenance), "config": job.config})
        with new_file(job.target, force=job.force) as file:
            onnx.checker.check_model(model)
            onnx.save(model, str(file))
            _verify(runtime, file, job)
        return job.target


def _check_dtypes(contract: WireContract) -> None:
    """Refuse the small floats that numpy knows by JAX alone: onnxruntime neither takes nor gives them."""
    for what, specs in (("input", contract.inputs), ("output", contract.outputs)):
        for spec in specs:
            if spec.dtype is not None and spec.dtype.kind == "V":
                cast = "declare it float32 in export_inputs and convert it in export_preprocess"
                raise ConfigError(
                    f"{what} {spec.name!r} is {spec.dtype}, which onnxruntime neither takes nor gives",
                    fix=f"{cast if what == 'input' else 'let forward return it as float32'}, or export a bundle",
                )


def _packages() -> tuple[Any, Any]:
    use = "an ONNX file, which is written with onnx and tried with onnxruntime,"
    return import_extra("onnx", use=use), import_extra("onnxruntime", use=use)


def _verify(runtime: Any, file: Path, job: ExportJob) -> None:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ConfigError(
            "onnxruntime cannot load what was written", why=str(error).splitlines()[0], fix="export a bundle"
        ) from error
    inputs = [spec.name for spec in job.served.contract.inputs]
    outputs = [spec.name for spec in job.served.contract.outputs]
    for size, (wire, wanted) in job.expected.items():
        found = session.run(outputs, dict(zip(inputs, wire, strict=True)))
        check_agreement(dict(zip(outputs, found, strict=True)), wanted, f"onnxruntime at batch size {size}")
