"""Export targets: what a backend is, those that come with nitro, and those of plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nitro_cli.errors import ConfigError, NotFoundError, nearest, warn

if TYPE_CHECKING:
    import numpy as np

    from nitro_cli.export.program import Served

__all__ = ["GROUP", "ExportBackend", "ExportJob", "backend_names", "find_backend", "without_postprocess"]

GROUP = "nitro.export_backends"
_OWN = {
    "bundle": "nitro_cli.export.bundle:BundleBackend",
    "onnx": "nitro_cli.export.onnx.backend:OnnxBackend",
    "savedmodel": "nitro_cli.export.savedmodel:SavedModelBackend",
    "safetensors": "nitro_cli.export.tensors:SafetensorsBackend",
}


@dataclass(frozen=True)
class ExportJob:
    """What a backend writes, all checked.

    Attributes:
        served: function, weights and wire contract.
        target: the path to make; the backend writes it whole or not at all.
        force: replace an existing target.
        batch_sizes: the fixed batch sizes asked for.
        provenance: merged entries, JSON-ready.
        patch: the working tree's patch, or None.
        config: the text of the configuration that rebuilds the experiment.
        expected: predictions to verify the artefact against: per batch size the wire inputs and the outputs by name.
        artefacts: further files to lie beside the program, by name: calibrator and policy.
        kept: what the run keeps beside its checkpoints, such as a tokenizer: content by name.
    """

    served: Served
    target: Path
    force: bool
    batch_sizes: tuple[int, ...]
    provenance: Mapping[str, Any]
    patch: bytes | None
    config: str
    expected: Mapping[int, tuple[tuple[np.ndarray, ...], Mapping[str, np.ndarray]]]
    artefacts: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, bytes] = field(default_factory=dict)


@runtime_checkable
class ExportBackend(Protocol):
    """Writes one kind of artefact.

    A backend may have a method `site_provenance(root)` besides, which says in the place of `git_provenance` what the
    sources below the folder `root` are; its entry `git_diff` is a patch, given to `write` as `job.patch`.
    """

    suffix: str
    """What the artefact's name ends in: empty for a directory."""

    def write(self, job: ExportJob) -> Path:
        """Write the artefact and verify it in its own runtime; nothing may be left behind by a failure."""


def without_postprocess(job: ExportJob, artefact: str) -> None:
    """Say that an artefact leaves the postprocess behind and what a client gets instead."""
    if job.served.contract.postprocess is not None:
        names = ", ".join(spec.name for spec in job.served.contract.outputs)
        warn(f"{artefact} cannot carry the postprocess: a client receives the program's own outputs, {names}")


def backend_names() -> list[str]:
    """Names of all backends, nitro's own and those of plugins."""
    return sorted({*_OWN, *(point.name for point in _plugins())})


def find_backend(backend: Any) -> ExportBackend:
    """The backend of a name, or the object itself.

    Raises:
        NotFoundError: there is no backend of the name.
        ConfigError: it cannot be imported, or lacks a method.
    """
    if not isinstance(backend, str):
        return _checked(backend, type(backend).__name__)
    if backend in _OWN:
        module, _, name = _OWN[backend].partition(":")
        return _checked(getattr(import_module(module), name)(), backend)
    for point in _plugins():
        if point.name == backend:
            try:
                return _checked(point.load()(), backend)
            except ImportError as error:
                raise ConfigError(
                    f"the export backend {backend!r} cannot be imported", where=point.value, why=str(error)
                ) from error
    raise NotFoundError(
        f"there is no export backend {backend!r}",
        why=f"there are: {', '.join(backend_names())}",
        nearest=nearest(backend, backend_names()),
    )


def _plugins() -> list[EntryPoint]:
    return [] if os.environ.get("NITRO_NO_PLUGINS") == "1" else list(entry_points(group=GROUP))


def _checked(backend: Any, name: str) -> ExportBackend:
    if not callable(getattr(backend, "write", None)):
        raise ConfigError(f"the export backend {name} has no method `write`", fix="define write(self, job) -> Path")
    if not isinstance(getattr(backend, "suffix", None), str):
        raise ConfigError(
            f"the export backend {name} has no attribute `suffix`",
            why="it is what the artefact's name ends in",
            fix='suffix = ".ext", or "" for a directory',
        )
    return backend
