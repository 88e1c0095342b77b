"""Running an exported bundle, with the standard library, numpy and jax alone.

This file is nitro's own loader and is copied into every bundle as `load.py`, so that a bundle runs where nitro is not
installed:

    from load import load_bundle
    bundle = load_bundle("path/to/bundle")
    outputs = bundle(image=images)
"""

import hashlib
import json
import math
import struct
import warnings
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

__all__ = ["Bundle", "BundleError", "load_bundle"]

FORMAT = 1
MANIFEST = "manifest.json"
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


class BundleError(Exception):
    """The bundle is damaged, leads outside itself, or cannot be run as asked."""


def load_bundle(path: Any, *, trust_postprocess: bool = False, raw: bool = False) -> "Bundle":
    """Open a bundle: verify every file, read the weights, and make its program callable.

    Args:
        path: the bundle's directory.
        trust_postprocess: run the Python source that came with the bundle on its outputs.
        raw: leave the postprocess aside and give the program's own outputs.

    Raises:
        BundleError: a file is missing, damaged or outside the bundle, the format is newer than this loader, or there is
            a postprocess and neither `trust_postprocess` nor `raw` was given.
    """
    root = Path(path)
    manifest = read_manifest(root)
    verify(root, manifest)
    postprocess = None
    if manifest["postprocess"] is not None and not raw:
        if not trust_postprocess:
            raise BundleError(
                f"{root} comes with a postprocess, Python source that would be executed: read it, then give "
                "trust_postprocess=True to run it, or raw=True for the program's own outputs"
            )
        postprocess = _postprocess(inside(root, manifest["postprocess"]))
    return Bundle(root, manifest, postprocess)


class Bundle:
    """An opened bundle; call it with the wire inputs by name or in order.

    Attributes:
        path: its directory.
        manifest: what manifest.json says: `inputs`, `outputs`, `platforms`, `valid_until`, ...
        provenance: where it comes from.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], postprocess: Any) -> None:
        self.path = path
        self.manifest = manifest
        self.provenance = json.loads(inside(path, "provenance.json").read_text())
        self._postprocess = postprocess
        self._weights = read_safetensors(inside(path, manifest["weights"]))
        self._call = self._program()

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, np.ndarray]:
        """Outputs by name for one batch of any size (of the exported sizes, where the batch size is fixed)."""
        wire = self._wire(inputs, named)
        found = self._call(wire)
        outputs = {spec["name"]: np.asarray(found[spec["name"]]) for spec in self.manifest["outputs"]}
        if self._postprocess is not None:
            outputs = dict(self._postprocess(outputs))
        return outputs

    def _wire(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[np.ndarray, ...]:
        specs = self.manifest["inputs"]
        names = [spec["name"] for spec in specs]
        if len(inputs) > len(names):
            raise BundleError(f"{len(inputs)} inputs were given, the bundle takes {', '.join(names)}")
        given = {**dict(zip(names, inputs)), **named}  # noqa: B905
        if set(given) != set(names) or len(given) != len(inputs) + len(named):
            raise BundleError(f"the inputs are {', '.join(names)}; given were {', '.join(sorted(given)) or 'none'}")
        arrays = []
        for spec in specs:
            array = np.asarray(given[spec["name"]])
            want = tuple(spec["shape"][1:])
            if array.dtype.name != spec["dtype"] or array.ndim == 0 or array.shape[1:] != want or len(array) == 0:
                raise BundleError(
                    f"input {spec['name']!r} is {array.dtype.name}{list(array.shape)}, the bundle takes "
                    f"{spec['dtype']}{['batch', *want]}".replace("'", "")
                )
            arrays.append(array)
        if len({len(array) for array in arrays}) != 1:
            raise BundleError("the inputs have different batch sizes: " + ", ".join(str(len(a)) for a in arrays))
        return tuple(arrays)

    def _program(self) -> Any:
        from jax import export

        until = self.manifest["valid_until"]
        if date.today() > date.fromisoformat(until):
            warnings.warn(f"the program of {self.path} was promised to load until {until}", stacklevel=3)
        opened: dict[str, Any] = {}

        def program(file: str) -> Any:
            if file not in opened:
                opened[file] = export.deserialize(bytearray(inside(self.path, file).read_bytes()))
            return opened[file]

        def call(wire: tuple[np.ndarray, ...]) -> Any:
            programs = self.manifest["programs"]
            file = programs.get("any") or programs.get(str(len(wire[0])))
            if file is None:
                raise BundleError(f"no program for a batch of {len(wire[0])}; there are: {', '.join(programs)}")
            return program(file).call(self._weights, *wire)

        return call


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest of a bundle, its format checked."""
    try:
        manifest = json.loads((root / MANIFEST).read_text())
    except FileNotFoundError:
        raise BundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
    except (ValueError, OSError) as error:
        raise BundleError(f"{root / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "nitro-bundle":
        raise BundleError(f"{root / MANIFEST} is no manifest of a bundle")
    if manifest.get("format", 0) > FORMAT:
        raise BundleError(
            f"the bundle has format {manifest['format']} (nitro {manifest.get('nitro')}), this loader reads {FORMAT}"
        )
    return manifest


def inside(root: Path, name: str) -> Path:
    """The path of a file of the bundle; one that leads outside is refused, links included."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name:
        raise BundleError(f"{name!r} leads outside the bundle {root}")
    path = root / pure
    if not path.resolve().is_relative_to(root.resolve()):
        raise BundleError(f"{name!r} leads outside the bundle {root}")
    return path


def verify(root: Path, manifest: dict[str, Any]) -> None:
    """Compare the manifest and every file with the digests written at export."""
    sealed = {key: value for key, value in manifest.items() if key != "seal"}
    if seal(sealed) != manifest.get("seal"):
        raise BundleError(f"{root / MANIFEST} was changed after the export")
    for name, facts in manifest["files"].items():
        path = inside(root, name)
        if not path.is_file():
            raise BundleError(f"{name} is missing from the bundle {root}")
        data = path.read_bytes()
        if len(data) != facts["bytes"] or hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise BundleError(f"{name} of the bundle {root} is not the file that was exported")


def seal(manifest: dict[str, Any]) -> str:
    """Digest of a manifest's content, however it is laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: an 8-byte header length, a JSON header, raw little-endian data."""
    data = path.read_bytes()
    if len(data) < 8:
        raise BundleError(f"{path} is no safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise BundleError(f"{path} is truncated")
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        dtype = _dtype(entry["dtype"])
        if not 0 <= start <= end <= len(body) or end - start != dtype.itemsize * math.prod(entry["shape"]):
            raise BundleError(f"{path}: {name} does not fit its data")
        arrays[name] = np.frombuffer(body[start:end], dtype=dtype).reshape(entry["shape"])
    return arrays


def _dtype(name: str) -> Any:
    if name not in _DTYPES:
        raise BundleError(f"unknown dtype {name} in the weights")
    if _DTYPES[name].startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, _DTYPES[name]))
    return np.dtype(_DTYPES[name])


def _postprocess(path: Path) -> Any:
    scope: dict[str, Any] = {"__name__": "postprocess", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["postprocess"]
