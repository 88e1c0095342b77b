"""A TensorFlow SavedModel that TF Serving loads: the exported program as one XLA call, weights as shared variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from nitro_cli.errors import ConfigError
from nitro_cli.export.agreement import check_agreement
from nitro_cli.export.backends import ExportJob, without_postprocess
from nitro_cli.export.program import PLATFORMS, without_source_paths
from nitro_cli.export.writing import new_directory
from nitro_cli.installation import import_extra

__all__ = ["SavedModelBackend"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SavedModelBackend:
    """A directory with one signature `serving_b{N}` per batch size; `serving_default` is the first."""

    suffix = ""

    def write(self, job: ExportJob) -> Path:
        """Write the directory, load it with TensorFlow and compare its outputs.

        Raises:
            MissingExtraError: TensorFlow is not installed.
            ConfigError: a tensor's name cannot be an argument of a signature.
            IntegrityError: TensorFlow gives other outputs than the handle.
        """
        tf, call_module = _tensorflow()
        _check_names(job)
        without_postprocess(job, "a SavedModel")
        with new_directory(job.target, force=job.force) as folder:
            holder = tf.Module()
            weights = job.served.weights
            holder.weights = {name: tf.Variable(weights[name], name=_plain(name)) for name in weights}
            signatures = {
                f"serving_b{size}": _signature(tf, call_module, holder, job, size) for size in job.batch_sizes
            }
            signatures["serving_default"] = signatures[f"serving_b{job.batch_sizes[0]}"]
            tf.saved_model.save(holder, str(folder), signatures=signatures)
            extra = folder / "assets.extra"
            extra.mkdir()
            (extra / "provenance.json").write_text(json.dumps(job.provenance, indent=1, allow_nan=False) + "\n")
            (extra / "config.toml").write_text(job.config)
            if job.patch is not None:
                (extra / str(job.provenance["patch"])).write_bytes(job.patch)
            _verify(tf, folder, job)
        return job.target


def _tensorflow() -> tuple[Any, Callable[..., Any]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    use = "a SavedModel"
    tf = import_extra("tensorflow", use=use)
    return tf, import_extra("tensorflow.compiler.tf2xla.ops.gen_xla_ops", use=use).xla_call_module


def _check_names(job: ExportJob) -> None:
    contract = job.served.contract
    for spec in (*contract.inputs, *contract.outputs):
        if not _NAME.fullmatch(spec.name):
            raise ConfigError(
                f"{spec.name!r} cannot be the name of a tensor in a SavedModel",
                why="a signature's tensors are named by letters, digits and underscores",
                fix="rename it in export_inputs or export_outputs",
            )


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_./-]", "_", name)


def _signature(tf: Any, call_module: Callable[..., Any], holder: Any, job: ExportJob, size: int) -> Any:
    """The concrete function of one batch size, over the holder's variables."""
    contract, weights = job.served.contract, job.served.weights
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    wire = [jax.ShapeDtypeStruct(spec.sized(size), spec.dtype) for spec in contract.inputs]
    with without_source_paths():
        exported = export.export(jax.jit(job.served.function), platforms=PLATFORMS)(shapes, *wire)
    order = [spec.name for spec in contract.inputs]
    outputs = sorted(contract.outputs, key=lambda spec: spec.name)

    def call(**sent: Any) -> dict[str, Any]:
        flat = [*(holder.weights[name] for name in sorted(weights)), *(sent[name] for name in order)]
        found = call_module(
            args=[tf.convert_to_tensor(flat[i]) for i in exported.module_kept_var_idx],
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Sout=[tf.TensorShape(spec.sized(size)) for spec in outputs],
            Tout=[tf.as_dtype(spec.dtype) for spec in outputs],
            platforms=[platform.upper() for platform in exported.platforms],
            dim_args_spec=[],
            function_list=[],
            has_token_input_output=False,
            disabled_checks=[],
        )
        return {spec.name: value for spec, value in zip(outputs, found, strict=True)}

    specs = {spec.name: tf.TensorSpec(spec.sized(size), tf.as_dtype(spec.dtype), spec.name) for spec in contract.inputs}
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def _verify(tf: Any, folder: Path, job: ExportJob) -> None:
    loaded = tf.saved_model.load(str(folder))
    names = [spec.name for spec in job.served.contract.inputs]
    for size in job.batch_sizes:
        wire, wanted = job.expected[size]
        sent = {name: tf.constant(value) for name, value in zip(names, wire, strict=True)}
        found: Mapping[str, Any] = loaded.signatures[f"serving_b{size}"](**sent)
        arrays = {name: np.asarray(value) for name, value in found.items()}
        check_agreement(arrays, wanted, f"the SavedModel's signature serving_b{size}")
