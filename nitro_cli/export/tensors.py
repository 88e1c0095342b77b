"""The weights alone, as a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nitro_cli.errors import IntegrityError, MissingExtraError
from nitro_cli.export.backends import ExportJob
from nitro_cli.export.load import read_safetensors
from nitro_cli.export.writing import new_file

__all__ = ["SafetensorsBackend", "write_safetensors"]


class SafetensorsBackend:
    """`NAME.safetensors`: arrays under flat dotted names, provenance as the file's metadata."""

    suffix = ".safetensors"

    def write(self, job: ExportJob) -> Path:
        """Write the file and read it back."""
        with new_file(job.target, force=job.force) as file:
            write_safetensors(file, job.served.weights, {"provenance": json.dumps(job.provenance)})
            check_same(read_safetensors(file), job.served.weights, file)
        return job.target


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write arrays under their names; dtypes are kept."""
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise MissingExtraError(
            "writing safetensors needs the safetensors package", fix="pip install safetensors"
        ) from error
    held = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    save_file(held, path, metadata=dict(metadata))
    path.chmod(0o644)  # the library makes a file that only its owner can read


def check_same(found: Mapping[str, Any], wanted: Mapping[str, np.ndarray], where: Path) -> None:
    """Raise unless both hold the same arrays, bit for bit."""
    for name, array in wanted.items():
        other = found.get(name)
        if (
            other is None
            or other.dtype != array.dtype
            or other.shape != array.shape
            or other.tobytes() != array.tobytes()
        ):
            raise IntegrityError(f"{name} came back from the file other than it was written", where=str(where))
